"""The layout of all keys and values in the one buffer of the operator TreeAttention.

runtime/kernels/attention.hpp describes the part of a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgedec.graph import KvState

__all__ = ["CacheLayout", "cache_layout", "kv_bytes"]

_KEY_BLOCK = 16  # slots of a block in attention.hpp


def kv_bytes(state: KvState, positions: int) -> int:
    """Return the bytes of a state, a multiple of 64: whole blocks of slots; int8 adds two scales per slot and head."""
    slots = -(-positions // _KEY_BLOCK) * _KEY_BLOCK
    return slots * (state.row_bytes() + (8 * state.kv_heads if state.bits == 8 else 0))


@dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """The layout of the buffer. ``offsets`` are the first bytes of the states."""

    states: Mapping[str, KvState]
    offsets: Mapping[str, int]
    positions: int
    nbytes: int


def cache_layout(states: Mapping[str, KvState], positions: int) -> CacheLayout:
    """Return the layout with the states of a graph in order."""
    offsets, end = {}, 0
    for name, state in states.items():
        offsets[name] = end
        end += kv_bytes(state, positions)
    return CacheLayout(states=states, offsets=offsets, positions=positions, nbytes=end)
