"""A table of fixed size from contexts to the tokens that followed them. The least recently used contexts are replaced."""

from __future__ import annotations

import numpy as np

__all__ = ["ContextTable", "context_key"]

_WAYS = 8  # rows in which a context may be stored
_FACTOR, _MOST = 0x9E3779B97F4A7C15, (1 << 63) - 1  # the factor of a token; the largest key


class ContextTable:
    """A set-associative cache from contexts to rows of successors. It allocates no memory after its construction.

    Two contexts with equal keys share a row. That can cause a wrong guess, but not a wrong text.

    Parameters:
        entries: number of rows, rounded up to a multiple of 8.
        width: number of successors in a row.

    Members:
        ids, values: int32 and float32 [rows, width]; unused places contain -1 and 0.
        counts: int32 [rows], free for the caller's use; 0 in a new row.
    """

    def __init__(self, entries: int, width: int) -> None:
        self._sets = _sets(entries)
        rows = self._sets * _WAYS
        self.ids = np.zeros((rows, width), np.int32)
        self.values = np.zeros((rows, width), np.float32)
        self.counts = np.zeros(rows, np.int32)
        self._touched = np.zeros(rows, np.int64).data  # value of ``_clock`` at the last use; 0: never used
        self._keys = np.zeros(rows, np.int64).data
        self._clock = 0

    @staticmethod
    def table_bytes(entries: int, width: int) -> int:
        """Return the bytes of the arrays of a table."""
        return _sets(entries) * _WAYS * (8 * width + 4 + 8 + 8)

    def find(self, context: tuple[int, ...]) -> int:
        """Return the row of a context; -1 if it has none."""
        key = context_key(context)
        base = key % self._sets * _WAYS
        ways = self._keys[base : base + _WAYS].tolist()
        return base + ways.index(key) if key in ways else -1

    def claim(self, context: tuple[int, ...]) -> int:
        """Return the row of a context and mark it as used; a new context gets the least recently used row of its set."""
        key = context_key(context)
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


def context_key(context: tuple[int, ...]) -> int:
    """Return the key of a context of int32 ids, 1 to 2**63 - 1; ``context_key`` of table.hpp computes the same.

    The key of (5,) is 5201319483108303315.
    """
    key = _FACTOR & _MOST
    for token in context:
        key = (key ^ token & 0xFFFFFFFF) * _FACTOR & _MOST
    return key ^ key >> 32 or 1


def _sets(entries: int) -> int:
    return max(1, -(-entries // _WAYS))
