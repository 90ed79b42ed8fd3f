"""A short convolution along the path of each row, and silu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import CausalConv
from edgedec.reference.float_profile.model import FloatPassContext
from edgedec.reference.float_profile.ops.gated_activation import silu

__all__ = ["run"]


def run(op: CausalConv, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    (x,) = inputs
    weight = context.weights(op.weight).dense()[:, 0]  # [channels, kernel]
    bias = context.weights(op.bias).dense() if op.bias else np.zeros(len(weight), np.float32)
    out = np.empty_like(x)
    for row in range(len(x)):
        seen = np.concatenate(
            [context.cache.before(op.state, row), x[row : row + 1]]
        )  # [kernel, channels], the row last
        context.cache.advance(op.state, seen[1:])
        total = bias.copy()
        for k in range(len(seen)):
            total += weight[:, k] * seen[k]
        out[row] = silu(total)
    return (out,)
