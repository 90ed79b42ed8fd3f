"""The recurrence of state space duality, one row and head at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.ops import SelectiveScan
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run"]


def run(
    op: SelectiveScan, inputs: Sequence[NDArray[Any]], context: FloatPassContext
) -> tuple[NDArray[np.float32], ...]:
    x, b, c = (part.reshape(len(part), count, -1) for part, count in zip(inputs, (op.heads, op.groups, op.groups)))
    rate = np.exp(context.weights(op.decay).dense())
    skip, step_bias = context.weights(op.skip).dense(), context.weights(op.step_bias).dense()
    # log(1 + exp(z)) without an overflow
    step = np.clip(np.logaddexp(np.float32(0), inputs[3] + step_bias), *op.step_limits).astype(np.float32)
    out = np.empty_like(x)
    for row in range(len(x)):
        after = np.empty_like(context.cache.before(op.state, row))
        for head, before in enumerate(context.cache.before(op.state, row)):
            group = head * op.groups // op.heads
            d = step[row, head]
            after[head] = np.exp(-rate[head] * d) * before + d * np.outer(x[row, head], b[row, group])
            out[row, head] = after[head] @ c[row, group] + skip[head] * x[row, head]
        context.cache.advance(op.state, after)
    return (out.reshape(len(x), -1),)
