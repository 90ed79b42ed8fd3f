"""Softmax attention over the visible keys, one query and head at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.ops import Attention
from edgedec.reference.float_profile.model import PassContext

__all__ = ["run"]


def run(op: Attention, inputs: Sequence[NDArray[Any]], context: PassContext) -> tuple[NDArray[np.float32], ...]:
    state = context.cache.states[op.state]
    q, k, v = (x.reshape(len(x), -1, state.head_dim) for x in inputs)
    context.cache.append(op.state, k, v)
    keys, values = context.cache.keys[op.state], context.cache.values[op.state]
    committed = np.ones(context.cache.length, np.bool_)
    out = np.empty_like(q)
    for i, position in enumerate(context.positions):
        seen = np.concatenate([committed, context.visible[i]])
        if state.window is not None:
            at = context.cache.positions
            seen &= (at > position - state.window) | (at < state.sinks)
        for head in range(op.heads):
            shared = head * state.kv_heads // op.heads
            scores = keys[seen, shared] @ q[i, head] * np.float32(op.scale)
            weights = np.exp(scores - scores.max())
            out[i, head] = weights @ values[seen, shared] / weights.sum()
    return (out.reshape(len(q), -1),)
