"""The integers of a sequence: keys and values as int8 codes, and recurrent states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.graph.graph import KvState, RecurrentState
from edgedec.reference.float_profile.cache import parents_of
from edgedec.reference.integer_profile.numbers import I64

__all__ = ["IntegerCache"]

Rows = dict[str, NDArray[np.int8]]


class IntegerCache:
    """Two int8 arrays [rows, kv_heads, head_dim] for each state of keys and values, and an array for each recurrent one.

    Arrays are replaced and never changed, so forks are cheap. ``length`` rows are committed. A pass appends its rows after
    them; ``commit`` keeps some of these, in order, and the next pass drops the rest. A recurrent state has one array before
    the pass, zeros at first, and one after each of its rows.
    """

    def __init__(self, states: Mapping[str, KvState], recurrent: Mapping[str, RecurrentState] | None = None) -> None:
        self.states, self._recurrent = states, dict(recurrent or {})
        self._reset()
        self.length = 0
        self.positions = np.zeros(0, np.int32)
        self.keys: Rows = {name: np.zeros((0, s.kv_heads, s.head_dim), np.int8) for name, s in states.items()}
        self.values: Rows = {name: np.zeros((0, s.kv_heads, s.head_dim), np.int8) for name, s in states.items()}

    @property
    def pending(self) -> int:
        """Number of rows of the last pass; the minimum over states, because a pass may have failed half-way."""
        ends = (len(codes) for codes in self.values.values())
        return min([len(self.positions), *ends]) - self.length

    def _keep(self, rows: NDArray[np.int64]) -> None:
        self.positions = self.positions[rows]
        for part in (self.keys, self.values):
            part.update({name: codes[rows] for name, codes in part.items()})

    def _reset(self) -> None:
        """Set the recurrent states to those before the first row."""
        self._before = {name: np.zeros(s.shape, np.int64) for name, s in self._recurrent.items()}
        self._after: dict[str, list[I64]] = {name: [] for name in self._recurrent}
        self._parents: Sequence[int] = ()

    def before(self, name: str, row: int) -> I64:
        """Return a recurrent state as it is before a row of the pass; the rows before this one have been ``advance``d."""
        parent = self._parents[row]
        return self._before[name] if parent < 0 else self._after[name][parent]

    def advance(self, name: str, after: I64) -> None:
        """Keep a recurrent state as it is after the next row of the pass."""
        self._after[name].append(after)

    def begin(self, positions: NDArray[np.int32], visible: NDArray[np.bool_] | None = None) -> None:
        """Drop the uncommitted rows of the last pass, and prepare for new ones; without ``visible`` they are a chain.

        Raises:
            UnsupportedError: there is a recurrent state, and ``visible`` [n, n] is not that of a tree.
        """
        self._after = {name: [] for name in self._recurrent}
        seen = np.tri(len(positions), dtype=np.bool_) if visible is None else visible
        self._parents = parents_of(seen) if self._recurrent else ()
        if len(self.positions) > self.length:
            self._keep(np.arange(self.length))
        self.positions = np.concatenate([self.positions, positions])

    def append(self, name: str, keys: NDArray[np.int8], values: NDArray[np.int8]) -> None:
        """Append the codes of this pass, [n, kv_heads, head_dim]."""
        self.keys[name] = np.concatenate([self.keys[name], keys])
        self.values[name] = np.concatenate([self.values[name], values])

    def commit(self, nodes: NDArray[np.int32]) -> None:
        """Keep these rows of the last pass, in this order; with recurrent states they must be a path from its root.

        Raises:
            UsageError: the last pass has no such row, a row is named twice, or the rows are no path.
        """
        rows = [int(node) for node in nodes]
        if any(not 0 <= node < self.pending for node in rows) or len(set(rows)) != len(rows):
            raise UsageError(f"commit {rows} of a pass of {self.pending} rows; name each row once")
        if rows and self._recurrent:
            if [self._parents[row] for row in rows] != [-1, *rows[:-1]]:
                raise UsageError(f"commit {rows}, which are no path from the root; a recurrent state continues a path")
            self._before = {name: after[rows[-1]] for name, after in self._after.items()}
        self._keep(np.concatenate([np.arange(self.length), self.length + np.array(rows, np.int64)]))
        self.length += len(rows)

    def truncate(self, length: int) -> None:
        """Drop all rows except the first ``length`` committed ones; recurrent states go back to the beginning alone.

        Raises:
            UsageError: fewer rows are committed, or a recurrent state is to go back to some of them.
        """
        if not 0 <= length <= self.length:
            raise UsageError(f"truncate to {length} rows of {self.length}")
        if self._recurrent and length < self.length:
            if length:
                raise UsageError(
                    f"a recurrent state cannot go back to {length} rows of {self.length}; truncate to 0 and run them again"
                )
            self._reset()
        self.length = length
        self._keep(np.arange(length))

    def fork(self) -> IntegerCache:
        other = IntegerCache(self.states, self._recurrent)
        other.length, other.positions = self.length, self.positions
        other.keys, other.values = dict(self.keys), dict(self.values)
        other._before, other._parents = dict(self._before), self._parents
        other._after = {name: list(rows) for name, rows in self._after.items()}
        return other
