"""The gated delta rule, one row and head at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import GatedDeltaRule
from edgedec.reference.float_profile.model import FloatPassContext
from edgedec.reference.float_profile.ops.selective_scan import softplus
from edgedec.reference.float_profile.ops.sigmoid_gate import sigmoid

__all__ = ["run"]

_LEAST = np.float32(1e-6)  # keeps the length of a vector of zeros above zero


def run(
    op: GatedDeltaRule, inputs: Sequence[NDArray[Any]], context: FloatPassContext
) -> tuple[NDArray[np.float32], ...]:
    q, k, v = (
        part.reshape(len(part), count, -1)
        for part, count in zip(inputs[:3], (op.key_heads, op.key_heads, op.heads), strict=True)
    )
    rate, step = sigmoid(inputs[3]), softplus(inputs[4] + context.weights(op.step_bias).dense())
    rates = np.exp(context.weights(op.decay).dense().reshape(op.heads, 1))
    kept = np.exp(-rates * step.reshape(len(step), op.heads, -1))[..., None]  # [n, heads, 1 or key_dim, 1]
    out = np.empty_like(v)
    for row in range(len(v)):
        before = context.cache.before(op.state, row)
        after = np.empty_like(before)
        for head in range(op.heads):
            query, key = (_unit(part[row, head * op.key_heads // op.heads]) for part in (q, k))
            decayed = kept[row, head] * before[head]
            after[head] = decayed + np.outer(key, rate[row, head] * (v[row, head] - key @ decayed))
            out[row, head] = query / np.float32(np.sqrt(len(query))) @ after[head]
        context.cache.advance(op.state, after)
    return (out.reshape(len(v), -1),)


def _unit(x: NDArray[np.float32]) -> NDArray[np.float32]:
    result: NDArray[np.float32] = x / np.sqrt((x * x).sum() + _LEAST)
    return result
