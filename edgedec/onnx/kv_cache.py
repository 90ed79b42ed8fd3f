"""The layout of all keys and values in the one buffer of the operator TreeAttention.

runtime/kernels/attention/attention.hpp describes the part of a state, and the blocks into which sequences divide its rows.
States of one kind keep the same rows of a sequence (edgedec/graph/capacity.py), and have the same blocks and tables. Values
of some states are in a file instead, of which memory has a fixed number of rows (value_store.hpp, beside attention.hpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.capacity import Capacity
from edgedec.graph.graph import KvState

__all__ = ["BLOCK_ROWS", "CacheLayout", "FiledState", "blocks_of", "cache_layout", "kv_bytes"]

BLOCK_ROWS = 16  # rows of a block, kKeyBlock of attention.hpp
_COUNT_BYTES = 64  # eight int64, which have a line of the processor's cache to themselves
_LINE_BYTES = 64  # states begin at multiples of this
_USUAL_FRAMES = 2  # usual rows of values in memory, as a multiple of the keys that a query attends to
_ROW_BYTES, _FRAME_BYTES = 8, 5  # bytes of the tables for each row of values in a file, and for each one in memory


def blocks_of(rows: int) -> int:
    """Return the number of blocks that hold ``rows`` rows of a sequence."""
    return -(-rows // BLOCK_ROWS)


def kv_bytes(state: KvState, positions: int, *, filed: bool = False) -> int:
    """Return the bytes of a state, a multiple of 64: whole blocks of rows.

    Codes add two scales per row and head, and a selection adds labels. Values that are ``filed``, and their scales, are not
    among them.
    """
    scale = 4 if state.bits <= 8 else 0
    row = state.kv_heads * (state.key_bytes + scale + (0 if filed else state.value_bytes + scale)) + state.label_bytes
    return -(-BLOCK_ROWS * blocks_of(positions) * row // _LINE_BYTES) * _LINE_BYTES


@dataclass(frozen=True, kw_only=True)
class FiledState:
    """The values of a state that are in a file.

    Members:
        heads: key/value heads.
        slots: rows of each head in the file.
        row_bytes: bytes of a row with its scale.
        frames: rows of each head that memory has, too.
    """

    heads: int
    slots: int
    row_bytes: int
    frames: int

    @property
    def file_bytes(self) -> int:
        """Bytes in the file."""
        return self.heads * self.slots * self.row_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of the rows in memory, and of the tables and checksums."""
        return self.heads * (self.slots * _ROW_BYTES + self.frames * (self.row_bytes + _FRAME_BYTES))


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
        counts: first byte of the counts of keys, eight int64 at the end of the buffer (``KeyCounts`` in
            runtime/kernels/attention/attention.hpp); None: no query chooses keys.
        filed: the states whose values are in a file, in the order of their parts; the values of others are in the buffer.
        store: number of the open store of these values; 0: it is not open.
    """

    states: Mapping[str, KvState]
    offsets: Mapping[str, int]
    kinds: tuple[Capacity, ...]
    kind_of: Mapping[str, int]
    blocks: tuple[int, ...]
    nbytes: int
    counts: int | None = None
    filed: Mapping[str, FiledState] = field(default_factory=dict)
    store: int = 0

    def values_place(self, name: str) -> tuple[int, int]:
        """Return the number of the store that has a state's values, and their part of it; zeros: they are in the buffer."""
        return (self.store, list(self.filed).index(name)) if name in self.filed else (0, 0)

    def with_store(self, store: int) -> CacheLayout:
        """Return the layout with an open store."""
        return replace(self, store=store)

    @property
    def file_bytes(self) -> int:
        """Bytes of the file of values; 0: all values are in the buffer."""
        return sum(filed.file_bytes for filed in self.filed.values())

    @property
    def frame_bytes(self) -> int:
        """Bytes of memory for values in the file."""
        return sum(filed.memory_bytes for filed in self.filed.values())

    def slots(self, name: str) -> int:
        """Return the number of rows of a state, all sequences together."""
        return BLOCK_ROWS * self.blocks[self.kind_of[name]]

    @property
    def ring_bytes(self) -> int:
        """Bytes of the states that keep a window's rows only."""
        rings = [name for name, kind in self.kind_of.items() if self.kinds[kind].window is not None]
        return sum(kv_bytes(self.states[name], self.slots(name)) for name in rings)

    @property
    def label_bytes(self) -> int:
        """Bytes of the labels by which keys are chosen, and of the counts; 0: no query chooses keys."""
        labels = sum(self.slots(name) * state.label_bytes for name, state in self.states.items())
        return labels + (0 if self.counts is None else _COUNT_BYTES)

    def numbers(self) -> NDArray[np.int64]:
        """Return the states for the kernels, int64 [states, 10].

        The numbers are kv_heads, head_dim, slots, bits, first byte, kind, the bytes of a label of one head, the rank of
        stored keys, and ``values_place``.
        """
        rows = [
            (
                *(state.kv_heads, state.head_dim, self.slots(name), state.bits),
                *(self.offsets[name], self.kind_of[name], state.label_bytes // state.kv_heads),
                *(0 if state.basis is None else state.basis.rank, *self.values_place(name)),
            )
            for name, state in self.states.items()
        ]
        return np.array(rows, np.int64).reshape(-1, 10)


def cache_layout(
    states: Mapping[str, KvState], rows: int, *, positions: int = 0, slack: int = 0, value_rows: int | None = None
) -> CacheLayout:
    """Return the layout with the states of a graph in order and room for ``rows`` rows of all sequences.

    A ring has room for as many sequences as there are rows for sequences of ``positions`` rows. A window that keeps as many
    rows as a whole sequence is no ring.

    Args:
        states: the states of a graph.
        rows: rows of all sequences.
        positions: most rows of a sequence; 0: ``rows``.
        slack: rows of the largest pass, which rings need.
        value_rows: rows of values of each head that memory has of a state whose values may lie in a file; None: twice the
            keys that a query attends to, for each sequence. If memory has as many as there are, no value is in a file.
    """
    positions = positions or rows
    kinds: dict[Capacity, int] = {}
    kind_of = {name: kinds.setdefault(_capacity(state, positions, slack), len(kinds)) for name, state in states.items()}
    capacities = tuple(kinds) or (_FULL,)
    blocks = tuple(_blocks(capacity, rows, positions) for capacity in capacities)
    offsets, end = {}, 0
    slots = {name: BLOCK_ROWS * blocks[kind] for name, kind in kind_of.items()}
    frames = {name: _frames(state, rows, positions, value_rows) for name, state in states.items() if state.offload}
    filed = {name: _filed(states[name], slots[name], count) for name, count in frames.items() if count < slots[name]}
    for name, state in states.items():
        offsets[name] = end
        end += kv_bytes(state, slots[name], filed=name in filed)
    counts = end if any(state.selection is not None for state in states.values()) else None
    return CacheLayout(
        states=states,
        offsets=offsets,
        kinds=capacities,
        kind_of=kind_of,
        blocks=blocks,
        nbytes=end if counts is None else end + _COUNT_BYTES,
        counts=counts,
        filed=filed,
    )


def _frames(state: KvState, rows: int, positions: int, value_rows: int | None) -> int:
    if value_rows is not None:
        return value_rows
    assert state.selection is not None
    return _USUAL_FRAMES * state.selection.largest(positions) * max(1, rows // positions)


def _filed(state: KvState, slots: int, frames: int) -> FiledState:
    row_bytes = state.value_bytes + (4 if state.bits <= 8 else 0)
    return FiledState(heads=state.kv_heads, slots=slots, row_bytes=row_bytes, frames=frames)


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
