"""The layout of all keys and values in the one buffer of the operator TreeAttention.

runtime/kernels/attention.hpp describes the part of a state, and the blocks into which sequences divide its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.graph import KvState

__all__ = ["BLOCK_ROWS", "CacheLayout", "blocks_of", "cache_layout", "kv_bytes"]

BLOCK_ROWS = 16  # rows of a block, kKeyBlock of attention.hpp


def blocks_of(rows: int) -> int:
    """Return the number of blocks that hold ``rows`` rows of a sequence."""
    return -(-rows // BLOCK_ROWS)


def kv_bytes(state: KvState, positions: int) -> int:
    """Return the bytes of a state, a multiple of 64: whole blocks of rows; int8 adds two scales per row and head."""
    return BLOCK_ROWS * blocks_of(positions) * (state.row_bytes() + (8 * state.kv_heads if state.bits == 8 else 0))


@dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """The layout of the buffer.

    Members:
        states: the states of the graph by name.
        offsets: first byte of each state.
        positions: rows of the buffer, all sequences together.
        nbytes: size of the buffer.
    """

    states: Mapping[str, KvState]
    offsets: Mapping[str, int]
    positions: int
    nbytes: int

    @property
    def blocks(self) -> int:
        """Number of blocks of the buffer."""
        return blocks_of(self.positions)

    def numbers(self) -> NDArray[np.int64]:
        """Return the states for the kernels, int64 [states, 5]: kv_heads, head_dim, positions, bits, first byte."""
        rows = [
            (state.kv_heads, state.head_dim, self.positions, state.bits, self.offsets[name])
            for name, state in self.states.items()
        ]
        return np.array(rows, np.int64).reshape(-1, 5)


def cache_layout(states: Mapping[str, KvState], positions: int) -> CacheLayout:
    """Return the layout with the states of a graph in order and room for ``positions`` rows of all sequences."""
    offsets, end = {}, 0
    for name, state in states.items():
        offsets[name] = end
        end += kv_bytes(state, positions)
    return CacheLayout(states=states, offsets=offsets, positions=positions, nbytes=end)
