"""Softmax attention over the visible keys, one query and head at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.ops import Attention
from edgedec.reference.float_profile.model import FloatPassContext
from edgedec.reference.float_profile.ops.linear import soft_capped
from edgedec.reference.float_profile.ops.quantize_activation import quantize_rows

__all__ = ["run", "stored"]

_MOST_HALF = np.float32(65504)  # largest finite float16


def stored(x: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """Return x [n, kv_heads, head_dim] after a round trip through a cache of ``bits``.

    With 16 bits, values are rounded to float16 and limited to 65504; with 8 bits, they are int8 codes times absmax / 127 of
    each row and head.
    """
    if bits == 16:
        return np.clip(x, -_MOST_HALF, _MOST_HALF).astype(np.float16).astype(np.float32)
    if bits == 8:
        codes, scale = quantize_rows(x.reshape(-1, x.shape[-1]))
        dense: NDArray[np.float32] = codes.astype(np.float32) * scale
        return dense.reshape(x.shape)
    return x


def run(op: Attention, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    state = context.cache.states[op.state]
    q, k, v = (x.reshape(len(x), -1, state.head_dim) for x in inputs)
    context.cache.append(op.state, stored(k, state.bits), stored(v, state.bits))
    keys, values = context.cache.keys[op.state], context.cache.values[op.state]
    at = context.cache.positions[context.cache.slots[op.state]]
    committed = np.ones(len(at) - len(q), np.bool_)
    out = np.empty_like(q)
    for i, position in enumerate(context.positions):
        seen = np.concatenate([committed, context.visible[i]])
        if state.window is not None:
            seen &= (at > position - state.window) | (at < state.sinks)
        for head in range(op.heads):
            shared = head * state.kv_heads // op.heads
            scores = soft_capped(keys[seen, shared] @ q[i, head] * np.float32(op.scale), op.soft_cap)
            weights = np.exp(scores - scores.max())
            out[i, head] = weights @ values[seen, shared] / weights.sum()
    return (out.reshape(len(q), -1),)
