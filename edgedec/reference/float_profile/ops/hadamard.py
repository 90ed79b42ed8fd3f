"""Walsh-Hadamard transform of blocks of columns, with signs before it or after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.graph.ops import Hadamard
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run", "transformed"]


def transformed(x: NDArray[np.float32], block: int) -> NDArray[np.float32]:
    """Return the normalized transform of each ``block`` of columns of x float32 [n, width], in the operation's order."""
    out, distance = x, 1
    while distance < block:
        pairs = out.reshape(-1, 2, distance)
        first, second = pairs[:, 0], pairs[:, 1]
        out = np.stack([first + second, first - second], axis=1)
        distance *= 2
    return out.reshape(x.shape) * np.float32(block**-0.5)


def run(op: Hadamard, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    (x,) = inputs
    if x.shape[1] % op.block:
        raise UnsupportedError(f"{op.name}: its {x.shape[1]} columns are no multiple of the block of {op.block}")
    signs = context.weights(op.signs).dense() if op.signs else np.float32(1)
    return (transformed(x, op.block) * signs if op.inverse else transformed(x * signs, op.block),)
