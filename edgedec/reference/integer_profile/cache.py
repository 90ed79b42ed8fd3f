"""Keys and values as int8 codes: committed rows, followed by the rows of the last pass."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.graph import KvState

__all__ = ["IntegerCache"]

Rows = dict[str, NDArray[np.int8]]


class IntegerCache:
    """Two int8 arrays [rows, kv_heads, head_dim] for each state, which are replaced and never changed, so forks are cheap.

    ``length`` rows are committed. A pass appends its rows after them; ``commit`` keeps some of these, in order, and the next
    pass drops the rest.
    """

    def __init__(self, states: Mapping[str, KvState]) -> None:
        self.states = states
        self.length = 0
        self.positions = np.zeros(0, np.int32)
        self.keys: Rows = {name: np.zeros((0, s.kv_heads, s.head_dim), np.int8) for name, s in states.items()}
        self.values: Rows = {name: np.zeros((0, s.kv_heads, s.head_dim), np.int8) for name, s in states.items()}

    @property
    def pending(self) -> int:
        """Number of rows of the last pass; the minimum over states, because a pass may have failed half-way."""
        return min(len(self.positions), *(len(codes) for codes in self.values.values())) - self.length

    def _keep(self, rows: NDArray[np.int64]) -> None:
        self.positions = self.positions[rows]
        for part in (self.keys, self.values):
            part.update({name: codes[rows] for name, codes in part.items()})

    def begin(self, positions: NDArray[np.int32]) -> None:
        """Drop the uncommitted rows of the last pass, and prepare for new rows."""
        if len(self.positions) > self.length:
            self._keep(np.arange(self.length))
        self.positions = np.concatenate([self.positions, positions])

    def append(self, name: str, keys: NDArray[np.int8], values: NDArray[np.int8]) -> None:
        """Append the codes of this pass, [n, kv_heads, head_dim]."""
        self.keys[name] = np.concatenate([self.keys[name], keys])
        self.values[name] = np.concatenate([self.values[name], values])

    def commit(self, nodes: NDArray[np.int32]) -> None:
        """Keep these rows of the last pass, in this order.

        Raises:
            UsageError: the last pass has no such row, or a row is named twice.
        """
        rows = [int(node) for node in nodes]
        if any(not 0 <= node < self.pending for node in rows) or len(set(rows)) != len(rows):
            raise UsageError(f"commit {rows} of a pass of {self.pending} rows; name each row once")
        self._keep(np.concatenate([np.arange(self.length), self.length + np.array(rows, np.int64)]))
        self.length += len(rows)

    def truncate(self, length: int) -> None:
        """Drop all rows except the first ``length`` committed ones.

        Raises:
            UsageError: fewer rows are committed.
        """
        if not 0 <= length <= self.length:
            raise UsageError(f"truncate to {length} rows of {self.length}")
        self.length = length
        self._keep(np.arange(length))

    def fork(self) -> IntegerCache:
        other = IntegerCache(self.states)
        other.length, other.positions = self.length, self.positions
        other.keys, other.values = dict(self.keys), dict(self.values)
        return other
