"""The layout of the recurrent states of sequences in the one buffer of the kernels' operators with states.

The buffer has a slot for each sequence. A slot holds the committed states, and after them, for each state, what a commit
needs of each row of the last pass: the inputs of the row. A commit replays the rows of the accepted path, so that no state
is kept for each row. runtime/kernels/recurrent.hpp describes both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph import Graph, RecurrentState
from edgedec.ops import CausalConv, GatedDeltaRule, Operation, SelectiveScan

__all__ = ["SLOT_INPUTS", "RecurrentLayout", "StateLayout", "recurrent_layout", "slot_layout"]

SLOT_INPUTS = ("visible", "sequences", "slots", "states")  # last inputs of each operator with a state
_ALIGNED = 16  # floats to which states and kept rows are aligned
_ATTRIBUTES = ("offset", "kept", "heads", "groups", "outer", "inner")


@dataclass(frozen=True, kw_only=True)
class StateLayout:
    """The sizes of one state, and its place in a slot.

    A state of a convolution is [outer, inner], the inputs of the rows before. Another one is [outer, inner] for each head: a
    row multiplies it by a factor and adds the outer product of left [outer], which neighbouring heads share, and right
    [inner].

    Members:
        heads: number of heads; 0 for a convolution.
        groups: number of different left vectors.
        outer, inner: sizes of the state, or of a head.
        offset: first float of the state in a slot.
        kept: first float of the rows that are kept.
    """

    heads: int
    groups: int
    outer: int
    inner: int
    offset: int = 0
    kept: int = 0

    @property
    def floats(self) -> int:
        """Floats of the state."""
        return max(1, self.heads) * self.outer * self.inner

    @property
    def kept_width(self) -> int:
        """Floats that are kept of a row: its inputs of a convolution, or factors, left and right vectors."""
        return self.heads * (1 + self.inner) + self.groups * self.outer if self.heads else self.inner


@dataclass(frozen=True, kw_only=True)
class RecurrentLayout:
    """The layout of a slot.

    Members:
        states: the states by name.
        rows: largest number of rows of a pass of one sequence.
        state_floats: floats of the states, with which a slot begins.
        slot_floats: floats of a slot.
    """

    states: Mapping[str, StateLayout]
    rows: int
    state_floats: int
    slot_floats: int

    def numbers(self) -> NDArray[np.int64]:
        """Return the states for the kernels, int64 [states, 6]: heads, groups, outer, inner, offset, kept."""
        rows = [(s.heads, s.groups, s.outer, s.inner, s.offset, s.kept) for s in self.states.values()]
        return np.array(rows, np.int64).reshape(-1, 6)

    def attributes(self, name: str) -> dict[str, Any]:
        """Return the attributes of an operator of the kernels with the state ``name``."""
        state = self.states[name]
        return {"slot": self.slot_floats, "rows": self.rows} | {key: getattr(state, key) for key in _ATTRIBUTES}

    @property
    def head_floats(self) -> int:
        """Floats of the largest head, of which each thread has a copy during a pass."""
        return max((state.outer * state.inner for state in self.states.values() if state.heads), default=0)


def recurrent_layout(graph: Graph, rows: int) -> RecurrentLayout | None:
    """Return the layout for passes of up to ``rows`` rows of a sequence; None if the graph has no recurrent states."""
    return slot_layout(graph.operations, graph.recurrent, rows) if graph.recurrent else None


def slot_layout(operations: Iterable[Operation], recurrent: Mapping[str, RecurrentState], rows: int) -> RecurrentLayout:
    """Return the layout of the states of ``operations``, by name in ``recurrent``, in the order of the operations."""
    sizes = {op.state: _sizes(op, recurrent[op.state].shape) for op in operations if isinstance(op, _STATEFUL)}
    states, end = dict[str, StateLayout](), 0
    for name, size in sizes.items():
        states[name] = StateLayout(**size, offset=end)
        end += _aligned(states[name].floats)
    state_floats = end
    for name, state in states.items():
        states[name] = StateLayout(**sizes[name], offset=state.offset, kept=end)
        end += _aligned(rows * state.kept_width)
    return RecurrentLayout(states=states, rows=rows, state_floats=state_floats, slot_floats=end)


_STATEFUL = (CausalConv, SelectiveScan, GatedDeltaRule)


def _sizes(op: CausalConv | SelectiveScan | GatedDeltaRule, shape: tuple[int, ...]) -> dict[str, int]:
    if isinstance(op, CausalConv):
        outer, inner = shape
        return {"heads": 0, "groups": 0, "outer": outer, "inner": inner}
    if isinstance(op, SelectiveScan):
        heads, inner, outer = shape
        return {"heads": heads, "groups": op.groups, "outer": outer, "inner": inner}
    heads, outer, inner = shape
    return {"heads": heads, "groups": op.key_heads, "outer": outer, "inner": inner}


def _aligned(floats: int) -> int:
    return -(-floats // _ALIGNED) * _ALIGNED
