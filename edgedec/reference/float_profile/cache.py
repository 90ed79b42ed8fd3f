"""The reference's key/value cache: committed rows, followed by the rows of the last pass."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgedec.graph import KvState

__all__ = ["FloatCache"]


class FloatCache:
    """Two float32 arrays [rows, kv_heads, head_dim] for each state, which grow by concatenation.

    ``length`` rows are committed. A pass appends its rows after them; ``commit`` keeps some of these, in order, and the next
    pass drops the rest.
    """

    def __init__(self, states: Mapping[str, KvState]) -> None:
        self.states = states
        self.length = 0
        self.positions = np.zeros(0, np.int32)
        self.keys = {name: np.zeros((0, s.kv_heads, s.head_dim), np.float32) for name, s in states.items()}
        self.values = {name: np.zeros((0, s.kv_heads, s.head_dim), np.float32) for name, s in states.items()}

    def _keep(self, rows: NDArray[np.int64]) -> None:
        self.positions = self.positions[rows]
        for name in self.states:
            self.keys[name] = self.keys[name][rows]
            self.values[name] = self.values[name][rows]

    def begin(self, n: int, positions: NDArray[np.int32]) -> None:
        """Drop the uncommitted rows of the last pass, and prepare for n new rows."""
        self._keep(np.arange(self.length))
        assert len(positions) == n
        self.positions = np.concatenate([self.positions, positions])

    def append(self, name: str, keys: NDArray[np.float32], values: NDArray[np.float32]) -> None:
        """Append the keys and values of this pass, [n, kv_heads, head_dim]."""
        self.keys[name] = np.concatenate([self.keys[name], keys])
        self.values[name] = np.concatenate([self.values[name], values])

    def commit(self, nodes: NDArray[np.int32]) -> None:
        """Keep these rows of the last pass, in this order."""
        # The minimum, because a pass that failed half-way has not added its rows to all states.
        pending = min(map(len, (self.positions, *self.values.values()))) - self.length
        assert all(0 <= node < pending for node in nodes), f"commit {nodes} of a pass of {pending} rows"
        self._keep(np.concatenate([np.arange(self.length), self.length + nodes.astype(np.int64)]))
        self.length += len(nodes)

    def truncate(self, length: int) -> None:
        """Drop all rows except the first ``length`` committed ones."""
        assert 0 <= length <= self.length, f"truncate {self.length} rows to {length}"
        self.length = length
        self._keep(np.arange(length))

    def fork(self) -> FloatCache:
        other = FloatCache(self.states)
        other.length, other.positions = self.length, self.positions
        other.keys, other.values = dict(self.keys), dict(self.values)  # arrays are replaced, never written to
        return other
