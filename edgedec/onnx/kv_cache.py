"""The layout of all keys and values in the one buffer of the operator TreeAttention.

runtime/kernels/attention.hpp describes the part of a state, and the blocks into which sequences divide its rows. States of
one kind keep the same rows of a sequence (edgedec/capacity.py), and have the same blocks and tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.capacity import Capacity
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
        kinds: capacities of the kinds of states, at least one.
        kind_of: number of each state's kind.
        blocks: number of blocks of the buffer for each kind, all sequences together.
        nbytes: size of the buffer.
    """

    states: Mapping[str, KvState]
    offsets: Mapping[str, int]
    kinds: tuple[Capacity, ...]
    kind_of: Mapping[str, int]
    blocks: tuple[int, ...]
    nbytes: int

    def slots(self, name: str) -> int:
        """Return the number of rows of a state, all sequences together."""
        return BLOCK_ROWS * self.blocks[self.kind_of[name]]

    @property
    def ring_bytes(self) -> int:
        """Bytes of the states that keep a window's rows only."""
        rings = [name for name, kind in self.kind_of.items() if self.kinds[kind].window is not None]
        return sum(kv_bytes(self.states[name], self.slots(name)) for name in rings)

    def numbers(self) -> NDArray[np.int64]:
        """Return the states for the kernels, int64 [states, 6]: kv_heads, head_dim, slots, bits, first byte, kind."""
        rows = [
            (
                *(state.kv_heads, state.head_dim, self.slots(name), state.bits),
                *(self.offsets[name], self.kind_of[name]),
            )
            for name, state in self.states.items()
        ]
        return np.array(rows, np.int64).reshape(-1, 6)


def cache_layout(states: Mapping[str, KvState], rows: int, *, positions: int = 0, slack: int = 0) -> CacheLayout:
    """Return the layout with the states of a graph in order and room for ``rows`` rows of all sequences.

    A ring has room for as many sequences as there are rows for sequences of ``positions`` rows. A window that keeps as many
    rows as a whole sequence is no ring.

    Args:
        states: the states of a graph.
        rows: rows of all sequences.
        positions: most rows of a sequence; 0: ``rows``.
        slack: rows of the largest pass, which rings need.
    """
    positions = positions or rows
    kinds: dict[Capacity, int] = {}
    kind_of = {name: kinds.setdefault(_capacity(state, positions, slack), len(kinds)) for name, state in states.items()}
    capacities = tuple(kinds) or (_FULL,)
    blocks = tuple(_blocks(capacity, rows, positions) for capacity in capacities)
    offsets, end = {}, 0
    for name, state in states.items():
        offsets[name] = end
        end += kv_bytes(state, BLOCK_ROWS * blocks[kind_of[name]])
    return CacheLayout(states=states, offsets=offsets, kinds=capacities, kind_of=kind_of, blocks=blocks, nbytes=end)


_FULL = Capacity(unit=BLOCK_ROWS)


def _capacity(state: KvState, positions: int, slack: int) -> Capacity:
    if state.capacity == "full":
        return _FULL
    ring = Capacity(window=state.window, sinks=state.sinks, slack=slack, unit=BLOCK_ROWS)
    return ring if ring.rows(positions) < _FULL.rows(positions) else _FULL


def _blocks(capacity: Capacity, rows: int, positions: int) -> int:
    """Return the number of blocks of a kind of states."""
    if capacity.window is None:
        return blocks_of(rows)
    return min(blocks_of(rows), max(1, rows // positions) * blocks_of(capacity.rows(positions)))
