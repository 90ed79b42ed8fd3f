"""Root mean square normalization with the sum in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.ops import RmsNorm
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run"]


def run(op: RmsNorm, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    (x,) = inputs
    gain = context.weights(op.weight).dense() + np.float32(op.offset)
    parts = x.reshape(-1, len(gain))  # a row for each head
    out = np.empty_like(parts)
    for i, row in enumerate(parts):
        mean_square = np.square(row, dtype=np.float64).sum() / len(row)
        out[i] = row * np.float32(1 / np.sqrt(mean_square + op.eps)) * gain
    return (out.reshape(x.shape),)
