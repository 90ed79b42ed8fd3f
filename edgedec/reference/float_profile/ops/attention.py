"""Softmax attention over the visible keys, one query and head at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import Attention
from edgedec.reference.float_profile.model import FloatPassContext
from edgedec.reference.float_profile.ops.linear import soft_capped
from edgedec.reference.float_profile.ops.quantize_activation import quantize_rows
from edgedec.reference.float_profile.selection import chosen

__all__ = ["run", "stored"]

_MOST_HALF = np.float32(65504)  # largest finite float16
_MOST_NIBBLE = 7  # largest code of 4 bits


def stored(x: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """Return x [n, kv_heads, head_dim] after a round trip through a cache of ``bits``.

    With 16 bits, values are rounded to float16 and limited to 65504; with 8 bits, they are int8 codes times absmax / 127 of
    each row and head, and with 4 bits, codes from -7 to 7 times absmax / 7.
    """
    if bits == 16:
        return np.clip(x, -_MOST_HALF, _MOST_HALF).astype(np.float16).astype(np.float32)
    if bits == 8:
        codes, scale = quantize_rows(x.reshape(-1, x.shape[-1]))
        dense: NDArray[np.float32] = codes.astype(np.float32) * scale
        return dense.reshape(x.shape)
    if bits == 4:
        step = np.abs(x).max(axis=-1, keepdims=True) / np.float32(_MOST_NIBBLE)
        codes = np.rint(np.divide(x, step, out=np.zeros_like(x), where=step > 0))
        rounded: NDArray[np.float32] = np.clip(codes, -_MOST_NIBBLE, _MOST_NIBBLE) * step
        return rounded
    return x


def run(op: Attention, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    state = context.cache.states[op.state]
    q, k, v = (x.reshape(len(x), -1, state.head_dim) for x in inputs)
    # Keys of a basis were rounded as the numbers that are stored (low_rank_keys.py).
    context.cache.append(op.state, k if state.basis is not None else stored(k, state.bits), stored(v, state.bits))
    keys, values = context.cache.keys[op.state], context.cache.values[op.state]
    at = context.cache.positions[context.cache.slots[op.state]]
    committed = np.ones(len(at) - len(q), np.bool_)
    out = np.empty_like(q)
    for i, position in enumerate(context.positions):
        seen = np.concatenate([committed, context.visible[i]])
        if state.window is not None:
            seen &= (at > position - state.window) | (at < state.sinks)
        rows = np.flatnonzero(seen)
        for head in range(op.heads):
            shared, read = head * state.kv_heads // op.heads, rows
            if state.selection is not None:
                read = rows[chosen(state.selection, shared, q[i, head], keys[rows, shared])]
            scores = soft_capped(keys[read, shared] @ q[i, head] * np.float32(op.scale), op.soft_cap)
            weights = np.exp(scores - scores.max())
            out[i, head] = weights @ values[read, shared] / weights.sum()
    return (out.reshape(len(q), -1),)
