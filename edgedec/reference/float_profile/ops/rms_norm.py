"""Root mean square normalization with the sum in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import RmsNorm
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["normalized", "run"]


def normalized(x: NDArray[np.float32], eps: float) -> NDArray[np.float32]:
    """Return each row of x [rows, width] divided by its root mean square."""
    out = np.empty_like(x)
    for i, row in enumerate(x):
        mean_square = np.square(row, dtype=np.float64).sum() / len(row)
        out[i] = row * np.float32(1 / np.sqrt(mean_square + eps))
    return out


def run(op: RmsNorm, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    (x,) = inputs
    gain = context.weights(op.weight).dense() + np.float32(op.offset)
    parts = x.reshape(-1, len(gain))  # a row for each head
    return ((normalized(parts, op.eps) * gain).reshape(x.shape),)
