"""Queues between the read stream and the units, and the integers that the bytes of their items encode."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ItemQueue", "integers"]

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]


def integers(items: U8, kind: str, first: int, count: int) -> I64:
    """Decode ``count`` little-endian numbers from byte ``first`` of each item on.

    Args:
        items: uint8 [n, size].
        kind: NumPy's name of the numbers' type, such as "<i2".

    Returns:
        int64 [n, count].
    """
    size = np.dtype(kind).itemsize
    values: I64 = np.ascontiguousarray(items[:, first : first + count * size]).view(kind).astype(np.int64)
    return values


class ItemQueue:
    """The items that wait for one destination, uint8 [n, size]. ``len`` counts them."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[Any, U8]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, items: U8, key: Any = None) -> None:
        self._chunks.append((key, items))
        self._count += len(items)

    def take(self, count: int) -> tuple[Any, U8]:
        """Remove the first ``count`` items, which must be present, and return (key, items).

        The key is that of the chunk that was put if the items are exactly this chunk, and None otherwise.
        """
        key, first = self._chunks.popleft()
        self._count -= count
        if len(first) == count:
            return key, first
        while len(first) < count:
            first = np.concatenate([first, self._chunks.popleft()[1]])
        if len(first) > count:
            self._chunks.appendleft((None, first[count:]))
        return None, first[:count]
