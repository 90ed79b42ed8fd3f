"""The recurrence of state space duality, one row and head at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import SelectiveScan
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run", "softplus"]


def softplus(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return log(1 + exp(x)), without an overflow."""
    return np.logaddexp(np.float32(0), x)


def run(
    op: SelectiveScan, inputs: Sequence[NDArray[Any]], context: FloatPassContext
) -> tuple[NDArray[np.float32], ...]:
    x, b, c = (
        part.reshape(len(part), count, -1)
        for part, count in zip(inputs[:3], (op.heads, op.groups, op.groups), strict=True)
    )
    rate = np.exp(context.weights(op.decay).dense())  # [heads], or by channel [heads, size]
    skip, step_bias = context.weights(op.skip).dense(), context.weights(op.step_bias).dense()
    step = np.clip(softplus(inputs[3] + step_bias), *op.step_limits).astype(np.float32)
    out = np.empty_like(x)
    for row in range(len(x)):
        before = context.cache.before(op.state, row)
        after = np.empty_like(before)
        for head in range(op.heads):
            group, d = head * op.groups // op.heads, step[row, head]
            after[head] = np.exp(-rate[head] * d) * before[head] + d * np.outer(x[row, head], b[row, group])
            out[row, head] = after[head] @ c[row, group] + skip[head] * x[row, head]
        context.cache.advance(op.state, after)
    return (out.reshape(len(x), -1),)
