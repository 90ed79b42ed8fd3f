"""The reference's key/value cache: committed rows, followed by the rows of the last pass."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgedec.capacity import Capacity, reach
from edgedec.graph import KvState

__all__ = ["FloatCache"]


class FloatCache:
    """Two float32 arrays [rows, kv_heads, head_dim] for each state, which grow by concatenation.

    ``length`` rows are committed. A pass appends its rows after them; ``commit`` keeps some of these, in order, and the next
    pass drops the rest. A state that is a ring drops committed rows that no window shows any more.

    Parameters:
        states: the states of a graph.
        slack: rows of the largest pass, which rings need.

    Members:
        positions: position of each row, int32 [rows], dropped ones included.
        slots: for each state the numbers of the rows that it has, in ascending order, int64 [its rows].
        keys, values: the arrays.
    """

    def __init__(self, states: Mapping[str, KvState], *, slack: int = 0) -> None:
        self.states, self._slack = states, slack
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

    def begin(self, n: int, positions: NDArray[np.int32]) -> None:
        """Drop the uncommitted rows of the last pass, and prepare for n new rows."""
        self._keep(np.arange(self.length))
        assert len(positions) == n
        self.positions = np.concatenate([self.positions, positions])

    def append(self, name: str, keys: NDArray[np.float32], values: NDArray[np.float32]) -> None:
        """Append the keys and values of this pass, [n, kv_heads, head_dim]."""
        self.slots[name] = np.concatenate([self.slots[name], self.length + np.arange(len(keys))])
        self.keys[name] = np.concatenate([self.keys[name], keys])
        self.values[name] = np.concatenate([self.values[name], values])

    def commit(self, nodes: NDArray[np.int32]) -> None:
        """Keep these rows of the last pass, in this order."""
        # The minimum, because a pass that failed half-way has not added its rows to all states.
        ends = (slots[-1] + 1 if len(slots) else 0 for slots in self.slots.values())
        pending = min(len(self.positions), *ends) - self.length
        assert all(0 <= node < pending for node in nodes), f"commit {nodes} of a pass of {pending} rows"
        self._keep(np.concatenate([np.arange(self.length), self.length + nodes.astype(np.int64)]))
        self.length += len(nodes)
        self._drop()

    @property
    def least_position(self) -> int:
        """Least position of a row that sees no dropped row."""
        return max((ring.least_position(self._floors[name]) for name, ring in self._rings.items()), default=0)

    def reach(self, length: int) -> int:
        """Return the number of first rows, at most ``length``, that ``truncate`` can go back to."""
        return reach(length, [(ring, self._floors[name]) for name, ring in self._rings.items()])

    def truncate(self, length: int) -> int:
        """Keep the first ``length`` committed rows, or fewer if a ring has dropped some, and return their number."""
        assert 0 <= length <= self.length, f"truncate {self.length} rows to {length}"
        self.length = self.reach(length)
        self._keep(np.arange(self.length))
        self._drop()
        return self.length

    def fork(self) -> FloatCache:
        other = FloatCache(self.states, slack=self._slack)
        other.length, other.positions = self.length, self.positions
        # Arrays are replaced, never written to.
        other.slots, other.keys, other.values = dict(self.slots), dict(self.keys), dict(self.values)
        other._floors = dict(self._floors)
        return other
