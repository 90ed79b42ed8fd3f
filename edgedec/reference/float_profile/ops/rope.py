"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import Rope
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["pair_columns", "run", "tables"]


def tables(op: Rope, positions: NDArray[np.int32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cos and sin times the magnitude, float32 [n, pairs]; float64 angles keep late positions exact."""
    angles = np.outer(positions.astype(np.float64), np.array(op.inverse_frequencies))
    cos, sin = np.cos(angles) * op.magnitude, np.sin(angles) * op.magnitude
    return cos.astype(np.float32), sin.astype(np.float32)


def pair_columns(op: Rope) -> tuple[Any, Any]:
    """Return the indices of the first and of the second columns of all pairs; the other columns do not change."""
    half = len(op.inverse_frequencies)
    if op.layout == "half":
        return np.s_[..., :half], np.s_[..., half : 2 * half]
    return np.s_[..., 0 : 2 * half : 2], np.s_[..., 1 : 2 * half : 2]


def run(op: Rope, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    x, positions = inputs
    heads = x.reshape(len(x), op.heads, op.head_dim)
    cos, sin = (table[:, None, :] for table in tables(op, positions))
    out = heads.copy()
    first, second = pair_columns(op)
    out[first] = heads[first] * cos - heads[second] * sin
    out[second] = heads[second] * cos + heads[first] * sin
    return (out.reshape(x.shape),)
