"""The reference's state of a sequence: keys and values, and the arrays that do not grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.graph.capacity import Capacity, reach
from edgedec.graph.graph import KvState, RecurrentState

__all__ = ["FloatCache", "parents_of"]


class FloatCache:
    """Two float32 arrays [rows, kv_heads, head_dim] for each state of keys and values, which grow by concatenation, and an
    array for each recurrent state.

    ``length`` rows are committed. A pass appends its rows after them; ``commit`` keeps some of these, in order, and the next
    pass drops the rest. A state that is a ring drops committed rows that no window shows any more. A recurrent state has one
    array before the pass, and one after each of its rows.

    Parameters:
        states: the states of keys and values of a graph.
        recurrent: its recurrent states.
        slack: rows of the largest pass, which rings need.

    Members:
        positions: position of each row, int32 [rows], dropped ones included.
        slots: for each state the numbers of the rows that it has, in ascending order, int64 [its rows].
        keys, values: the arrays.
    """

    def __init__(
        self,
        states: Mapping[str, KvState],
        recurrent: Mapping[str, RecurrentState] | None = None,
        *,
        slack: int = 0,
    ) -> None:
        self.states, self._recurrent, self._slack = states, dict(recurrent or {}), slack
        self.length = 0
        self.positions = np.zeros(0, np.int32)
        self.slots = {name: np.zeros(0, np.int64) for name in states}
        self.keys = {name: np.zeros((0, s.kv_heads, s.head_dim), np.float32) for name, s in states.items()}
        self.values = {name: np.zeros((0, s.kv_heads, s.head_dim), np.float32) for name, s in states.items()}
        self._rings = {
            name: Capacity(window=state.window, sinks=state.sinks, slack=slack)
            for name, state in states.items()
            if state.capacity == "ring"
        }
        self._floors = {name: ring.head for name, ring in self._rings.items()}
        self._reset()

    def _reset(self) -> None:
        """Set the recurrent states to those before the first row."""
        self._before = {name: np.zeros(s.shape, np.float32) for name, s in self._recurrent.items()}
        self._after: dict[str, list[NDArray[np.float32]]] = {name: [] for name in self._recurrent}
        self._parents: Sequence[int] = ()

    def _keep(self, rows: NDArray[np.int64]) -> None:
        """Keep the rows of these numbers, which become 0, 1, 2, ..."""
        self.positions = self.positions[rows]
        for name in self.states:
            here = np.isin(rows, self.slots[name])
            places = np.searchsorted(self.slots[name], rows[here])
            self.slots[name] = np.flatnonzero(here)
            self.keys[name] = self.keys[name][places]
            self.values[name] = self.values[name][places]

    def _drop(self) -> None:
        """Drop the committed rows that no query of a ring will see, except its slack."""
        for name, ring in self._rings.items():
            floor = ring.head if self.length <= ring.head else max(self._floors[name], ring.floor(self.length))
            self._floors[name] = floor
            kept = (self.slots[name] < ring.head) | (self.slots[name] >= floor)
            self.slots[name] = self.slots[name][kept]
            self.keys[name], self.values[name] = self.keys[name][kept], self.values[name][kept]

    def begin(self, positions: NDArray[np.int32], visible: NDArray[np.bool_]) -> None:
        """Drop the uncommitted rows of the last pass, and prepare for those at ``positions`` [n].

        Raises:
            UnsupportedError: there is a recurrent state, and ``visible`` [n, n] is not that of a tree: a row has no row
                before it whose state it could continue.
        """
        self._keep(np.arange(self.length))
        self._after = {name: [] for name in self._recurrent}
        self._parents = parents_of(visible) if self._recurrent else ()
        self.positions = np.concatenate([self.positions, positions])

    def append(self, name: str, keys: NDArray[np.float32], values: NDArray[np.float32]) -> None:
        """Append the keys and values of this pass, [n, kv_heads, head_dim], unless they are there already."""
        if self.slots[name].size and self.slots[name][-1] >= self.length:  # by an attention with the same state
            return
        self.slots[name] = np.concatenate([self.slots[name], self.length + np.arange(len(keys))])
        self.keys[name] = np.concatenate([self.keys[name], keys])
        self.values[name] = np.concatenate([self.values[name], values])

    def before(self, name: str, row: int) -> NDArray[np.float32]:
        """Return a recurrent state as it is before a row of the pass; the rows before this one have been ``advance``d."""
        parent = self._parents[row]
        return self._before[name] if parent < 0 else self._after[name][parent]

    def advance(self, name: str, after: NDArray[np.float32]) -> None:
        """Keep a recurrent state as it is after the next row of the pass."""
        self._after[name].append(after)

    def after(self, name: str) -> Sequence[NDArray[np.float32]]:
        """Return a recurrent state as it is after each row of the pass, until its rows are committed or dropped."""
        return self._after[name]

    def commit(self, nodes: NDArray[np.int32]) -> None:
        """Keep these rows of the last pass, in this order; with recurrent states they must be a path from its root."""
        # The minimum, because a pass that failed half-way has not added its rows to all states.
        ends = (slots[-1] + 1 if len(slots) else 0 for slots in self.slots.values())
        pending = min([len(self.positions), *ends]) - self.length
        assert all(0 <= node < pending for node in nodes), f"commit {nodes} of a pass of {pending} rows"
        if self._recurrent and len(nodes):
            path = [self._parents[node] for node in nodes]
            assert path == [-1, *nodes[:-1]], f"commit {nodes}, whose parents are {path}"
            self._before = {name: after[nodes[-1]] for name, after in self._after.items()}
        self._keep(np.concatenate([np.arange(self.length), self.length + nodes.astype(np.int64)]))
        self.length += len(nodes)
        self._drop()

    @property
    def least_position(self) -> int:
        """Least position of a row that sees no dropped row."""
        return max((ring.least_position(self._floors[name]) for name, ring in self._rings.items()), default=0)

    def reach(self, length: int) -> int:
        """Return the number of first rows, at most ``length``, that ``truncate`` can go back to.

        A recurrent state cannot go back: unless all rows stay, none does.
        """
        if self._recurrent and length < self.length:
            return 0
        return reach(length, [(ring, self._floors[name]) for name, ring in self._rings.items()])

    def truncate(self, length: int) -> int:
        """Keep the first ``length`` committed rows, or ``reach(length)`` if these are fewer, and return their number."""
        assert 0 <= length <= self.length, f"truncate {self.length} rows to {length}"
        before, self.length = self.length, self.reach(length)
        if self.length < before:
            self._reset()
        self._keep(np.arange(self.length))
        self._drop()
        return self.length

    def fork(self) -> FloatCache:
        other = FloatCache(self.states, self._recurrent, slack=self._slack)
        other.length, other.positions = self.length, self.positions
        # Arrays are replaced, never written to.
        other.slots, other.keys, other.values = dict(self.slots), dict(self.keys), dict(self.values)
        other._floors, other._before = dict(self._floors), dict(self._before)
        other._after = {name: list(rows) for name, rows in self._after.items()}
        other._parents = self._parents
        return other


def parents_of(visible: NDArray[np.bool_]) -> list[int]:
    """Return the row before each row on its path, -1 if it follows the committed rows.

    Raises:
        UnsupportedError: a row sees other rows than its parent and itself.
    """
    parents = list[int]()
    for row, sees in enumerate(visible):
        above = np.flatnonzero(sees[:row])
        parent = int(above[-1]) if len(above) else -1
        path = visible[parent] if parent >= 0 else np.zeros(len(visible), np.bool_)
        if not sees[row] or (sees != path)[np.arange(len(visible)) != row].any():
            raise UnsupportedError(
                f"row {row} of the pass sees rows {np.flatnonzero(sees).tolist()}, which are no path of a tree; a "
                "recurrent state continues that of one row"
            )
        parents.append(parent)
    return parents
