"""Keys that are stored as products with a few directions, and rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.low_rank import KeyBasis
from edgedec.graph.ops import LowRankKeys
from edgedec.reference.float_profile.model import FloatPassContext
from edgedec.reference.float_profile.ops.attention import stored

__all__ = ["rebuilt", "run"]


def rebuilt(basis: KeyBasis, keys: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """Return keys [n, kv_heads, head_dim] as they are rebuilt from the numbers that a cache of ``bits`` stores."""
    directions = basis.array(keys.shape[1])
    numbers = np.zeros((*keys.shape[:2], basis.rank), np.float32)
    for d in range(keys.shape[2]):
        numbers = numbers + keys[:, :, d, None] * directions[None, :, :, d]  # rounded after each product and each sum
    kept, made = stored(numbers, bits), np.zeros_like(keys)
    for r in range(basis.rank):
        made = made + kept[:, :, r, None] * directions[None, :, r]
    return made


def run(op: LowRankKeys, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    state = context.cache.states[op.state]
    assert state.basis is not None
    (k,) = inputs
    return (rebuilt(state.basis, k.reshape(len(k), state.kv_heads, state.head_dim), state.bits).reshape(k.shape),)
