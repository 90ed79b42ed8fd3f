"""What was seen after a context: a table of a fixed size that forgets the contexts that were not touched the longest."""

from __future__ import annotations

import numpy as np

__all__ = ["ContextTable"]

_WAYS = 8  # rows that a context may stand in


class ContextTable:
    """Rows of successors, found by context; a set-associative cache. Allocates nothing after its construction.

    Parameters:
        entries: rows, rounded up to a multiple of 8.
        width: successors of a row.

    Members:
        ids, values: int32 and float32 [rows, width]; -1 and 0 where a place is not used.
        counts: int32 [rows], for the user.

    Two contexts whose 64-bit hashes are equal share a row, and so do -1 and -2 (prompt embeddings):
    a wrong guess now and then, never a wrong text.
    """

    def __init__(self, entries: int, width: int) -> None:
        self._sets = _sets(entries)
        rows = self._sets * _WAYS
        self.ids = np.zeros((rows, width), np.int32)
        self.values = np.zeros((rows, width), np.float32)
        self.counts = np.zeros(rows, np.int32)
        self._touched = np.zeros(rows, np.int64).data  # when; 0: never
        self._keys = np.zeros(rows, np.int64).data
        self._clock = 0

    @staticmethod
    def table_bytes(entries: int, width: int) -> int:
        return _sets(entries) * _WAYS * (8 * width + 4 + 8 + 8)

    def find(self, context: tuple[int, ...]) -> int:
        """The row of a context; -1 if it has none."""
        key = hash(context) or 1
        base = key % self._sets * _WAYS
        ways = self._keys[base : base + _WAYS].tolist()
        return base + ways.index(key) if key in ways else -1

    def claim(self, context: tuple[int, ...]) -> int:
        """The row of a context, which counts as touched; if it had none, an empty one, another context's if need be."""
        key = hash(context) or 1
        base = key % self._sets * _WAYS
        ways = self._keys[base : base + _WAYS].tolist()
        if key in ways:
            row = base + ways.index(key)
        else:
            ages = self._touched[base : base + _WAYS].tolist()
            row = base + ages.index(min(ages))
            self._keys[row] = key
            self.ids[row], self.values[row], self.counts[row] = -1, 0, 0
        self._clock += 1
        self._touched[row] = self._clock
        return row


def _sets(entries: int) -> int:
    return max(1, -(-entries // _WAYS))
