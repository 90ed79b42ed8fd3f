"""Quantization of activations to int8 with one scale per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import QuantizeActivation
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["quantize_rows", "run"]


def quantize_rows(x: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return codes int8 [n, width] and scale float32 [n, 1] of x float32 [n, width]."""
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    codes = np.rint(np.divide(x, scale, out=np.zeros_like(x), where=scale > 0))
    # Below 2^-142 the scale is rounded to few bits, and a code could exceed 127.
    return np.clip(codes, -127, 127).astype(np.int8), scale


def run(op: QuantizeActivation, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[Any], ...]:
    return quantize_rows(inputs[0])
