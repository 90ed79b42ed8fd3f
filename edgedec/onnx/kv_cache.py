"""Where each state's keys and values lie in the one buffer that the operator TreeAttention works in.

What a state's part holds is told in runtime/kernels/attention.hpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgedec.graph import KvState

__all__ = ["CacheLayout", "cache_layout", "kv_bytes"]

_KEY_BLOCK = 16  # slots; attention.hpp


def kv_bytes(state: KvState, positions: int) -> int:
    """Bytes of one state, a multiple of 64: whole blocks of slots, and for int8 two float32 scales per slot and head."""
    slots = -(-positions // _KEY_BLOCK) * _KEY_BLOCK
    return slots * (state.row_bytes() + (8 * state.kv_heads if state.bits == 8 else 0))


@dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """``offsets``: where each state begins, in bytes."""

    states: Mapping[str, KvState]
    offsets: Mapping[str, int]
    positions: int
    nbytes: int


def cache_layout(states: Mapping[str, KvState], positions: int) -> CacheLayout:
    """The states of a graph, one behind the other."""
    offsets, end = {}, 0
    for name, state in states.items():
        offsets[name] = end
        end += kv_bytes(state, positions)
    return CacheLayout(states=states, offsets=offsets, positions=positions, nbytes=end)
