"""The layout of the recurrent states of sequences in the one buffer of the kernels' operators with states.

The buffer has a slot for each sequence. A slot holds the committed states, and after them, for each state, what a commit
needs of each row of the last pass: the inputs of the row. A commit replays the rows of the accepted path, so that no state
is kept for each row. Before the slots stand tables, which all slots share. runtime/kernels/rows/recurrent.hpp describes
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.graph.graph import Graph, RecurrentState
from edgedec.graph.ops import CausalConv, GatedDeltaRule, Operation, SelectiveScan

__all__ = ["SLOT_INPUTS", "RecurrentLayout", "StateLayout", "recurrent_layout", "slot_layout"]

SLOT_INPUTS = ("visible", "sequences", "slots", "states")  # last inputs of each operator with a state
_ALIGNED = 16  # floats to which states and kept rows are aligned
_ATTRIBUTES = ("offset", "kept", "heads", "groups", "outer", "inner", "decay", "table")
BY_HEAD, BY_ROW, BY_ELEMENT = range(3)  # Decay of runtime/kernels/rows/recurrent.hpp
_MOST_CHANNELS = 128  # limit of a block, which one thread computes: its state fits the cache nearest to a core


@dataclass(frozen=True, kw_only=True)
class StateLayout:
    """The sizes of one state, and its place in a slot.

    A state of a convolution is [outer, inner], the inputs of the rows before. Another one is [outer, inner] for each head: a
    row multiplies it by factors and adds the outer product of left [outer], which neighbouring heads share, and right
    [inner]. The channels of a scan with a decay by channel are divided into blocks, which take the place of heads.

    Members:
        heads: number of heads; 0 for a convolution.
        groups: number of different left vectors.
        outer, inner: sizes of the state, or of a head.
        offset: first float of the state in a slot.
        kept: first float of the rows that are kept.
        decay: one factor (``BY_HEAD``), one for each row of a head's state (``BY_ROW``), or one for each element of it,
            which follows from a step of each column and from a table of rates (``BY_ELEMENT``).
        table: first float of the rates in the tables.
    """

    heads: int
    groups: int
    outer: int
    inner: int
    decay: int = BY_HEAD
    offset: int = 0
    kept: int = 0
    table: int = 0

    @property
    def floats(self) -> int:
        """Floats of the state."""
        return max(1, self.heads) * self.outer * self.inner

    @property
    def kept_width(self) -> int:
        """Floats that are kept of a row: its inputs of a convolution, or factors, left and right vectors."""
        factors = (1, self.outer, self.inner)[self.decay]
        return self.heads * (factors + self.inner) + self.groups * self.outer if self.heads else self.inner


@dataclass(frozen=True, kw_only=True)
class RecurrentLayout:
    """The layout of a slot.

    Members:
        states: the states by name.
        rows: largest number of rows of a pass of one sequence.
        state_floats: floats of the states, with which a slot begins.
        slot_floats: floats of a slot.
        decays: for each table the state that it belongs to, and the weight whose exponential it holds.
        table_floats: floats of the tables before the first slot.
    """

    states: Mapping[str, StateLayout]
    rows: int
    state_floats: int
    slot_floats: int
    decays: Mapping[str, str]
    table_floats: int

    def numbers(self) -> NDArray[np.int64]:
        """Return the states for the kernels, int64 [states, 8]: heads, groups, outer, inner, offset, kept, decay, table."""
        rows = [(s.heads, s.groups, s.outer, s.inner, s.offset, s.kept, s.decay, s.table) for s in self.states.values()]
        return np.array(rows, np.int64).reshape(-1, 8)

    def tables(self, weight: Callable[[str], NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return the tables, float32 [table_floats], where ``weight`` returns a weight of the graph.

        Raises:
            BundleError: a rate is larger than any float32.
        """
        tables = np.zeros(self.table_floats, np.float32)
        for name, decay in self.decays.items():
            state = self.states[name]
            with np.errstate(over="ignore"):
                rates = np.exp(weight(decay)).reshape(state.heads, state.inner, state.outer)
            if not np.isfinite(rates).all():
                raise BundleError(
                    f"tensor {decay}: a rate of decay, the exponential of its largest value {weight(decay).max():g}, is "
                    "not a float32; the checkpoint is damaged"
                )
            tables[state.table : state.table + state.floats] = rates.swapaxes(1, 2).reshape(-1)
        return tables

    def attributes(self, name: str) -> dict[str, Any]:
        """Return the attributes of an operator of the kernels with the state ``name``."""
        state = self.states[name]
        sizes = {"slot": self.slot_floats, "rows": self.rows, "tables": self.table_floats}
        return sizes | {key: getattr(state, key) for key in _ATTRIBUTES}

    def nbytes(self, slots: int) -> int:
        """Return the bytes of the tables and a number of slots."""
        return 4 * (self.table_floats + slots * self.slot_floats)

    @property
    def head_floats(self) -> int:
        """Floats of the largest head, of which each thread has a copy during a pass."""
        return max((state.outer * state.inner for state in self.states.values() if state.heads), default=0)


def recurrent_layout(graph: Graph, rows: int) -> RecurrentLayout | None:
    """Return the layout for passes of up to ``rows`` rows of a sequence; None if the graph has no recurrent states."""
    return slot_layout(graph.operations, graph.recurrent, rows) if graph.recurrent else None


def slot_layout(operations: Iterable[Operation], recurrent: Mapping[str, RecurrentState], rows: int) -> RecurrentLayout:
    """Return the layout of the states of ``operations``, by name in ``recurrent``, in the order of the operations."""
    stateful = [op for op in operations if isinstance(op, _STATEFUL)]
    sizes = {op.state: _sizes(op, recurrent[op.state].shape) for op in stateful}
    decays = {op.state: op.decay for op in stateful if isinstance(op, SelectiveScan) and op.decay_by == "channel"}
    states, end, tables = dict[str, StateLayout](), 0, 0
    for name, size in sizes.items():
        states[name] = StateLayout(**size, offset=end, table=tables if name in decays else 0)
        end += _aligned(states[name].floats)
        tables += _aligned(states[name].floats) if name in decays else 0
    state_floats = end
    for name, state in states.items():
        states[name] = replace(state, kept=end)
        end += _aligned(rows * state.kept_width)
    return RecurrentLayout(
        states=states, rows=rows, state_floats=state_floats, slot_floats=end, decays=decays, table_floats=tables
    )


_STATEFUL = (CausalConv, SelectiveScan, GatedDeltaRule)


def _sizes(op: CausalConv | SelectiveScan | GatedDeltaRule, shape: tuple[int, ...]) -> dict[str, int]:
    if isinstance(op, CausalConv):
        outer, inner = shape
        return {"heads": 0, "groups": 0, "outer": outer, "inner": inner}
    if isinstance(op, SelectiveScan) and op.decay_by == "channel":
        channels, dim, outer = shape
        if dim != 1 or op.groups != 1:
            raise UnsupportedError(
                f"the CPU kernels cannot run {op.kind!r} ({op.name}) with a decay by channel, heads of {dim} channels and "
                f"{op.groups} groups, only with heads of 1 and 1 group; the reference target can run it (--device "
                "float_reference)"
            )
        inner = gcd(channels, _MOST_CHANNELS)
        return {"heads": channels // inner, "groups": 1, "outer": outer, "inner": inner, "decay": BY_ELEMENT}
    if isinstance(op, SelectiveScan):
        heads, inner, outer = shape
        return {"heads": heads, "groups": op.groups, "outer": outer, "inner": inner}
    heads, outer, inner = shape
    decay = BY_HEAD if op.decay_by == "head" else BY_ROW
    return {"heads": heads, "groups": op.key_heads, "outer": outer, "inner": inner, "decay": decay}


def _aligned(floats: int) -> int:
    return -(-floats // _ALIGNED) * _ALIGNED
