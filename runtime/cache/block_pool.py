"""The blocks of one kind of states, and the rows that a sequence has in them (``runtime/cache/cache_blocks.py``)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from edgedec.graph.capacity import Capacity, reach
from edgedec.onnx.kv_cache import BLOCK_ROWS, blocks_of
from edgedec.runtime.protocols import I32

__all__ = ["BlockPool", "HeldRows"]


class BlockPool:
    """The number of sequences that hold each block of one kind.

    The lowest free block is taken first, so a sequence that is alone has its rows one after another.

    Members:
        capacity: rows of a sequence that are kept.
        holders: number of sequences that hold each block.
        free: free blocks, a heap.
        stale: free blocks that were written to, whose pages are still there.
    """

    def __init__(self, capacity: Capacity, blocks: int) -> None:
        self.capacity = capacity
        self.holders = [0] * blocks
        self.free = list(range(blocks))
        self.stale: set[int] = set()

    def take(self) -> int:
        """Return a free block, which then has one holder."""
        block = heapq.heappop(self.free)
        self.holders[block] = 1
        self.stale.discard(block)
        return block

    def hold(self, blocks: I32) -> None:
        """Count one more holder of each block."""
        for block in blocks.tolist():
            self.holders[block] += 1

    def release(self, blocks: I32) -> None:
        """Count one holder less of each block."""
        for block in blocks.tolist():
            self.holders[block] -= 1
            if not self.holders[block]:
                heapq.heappush(self.free, block)
                self.stale.add(block)


@dataclass(frozen=True)
class HeldRows:
    """The rows that a sequence has blocks for.

    Members:
        rows: number of committed rows.
        kept: for each kind of states, the capacity, and the first row after the head that is still there.
        recurrent: True if there are also recurrent states, which are those after all rows.
    """

    rows: int
    kept: tuple[tuple[Capacity, int], ...]
    recurrent: bool = False

    def reach(self, length: int) -> int:
        """Return the number of first rows, at most ``length``, from which the sequence can go on.

        A recurrent state cannot go back: unless all rows stay, none does.
        """
        return 0 if self.recurrent and length < self.rows else reach(length, self.kept)

    def blocks(self, kind: int, length: int) -> I32:
        """Return the entries of a table that have the first ``length`` rows, int32 [blocks], without dropped ones."""
        capacity, floor = self.kept[kind]
        entries = np.arange(blocks_of(length), dtype=np.int32)
        return entries[(entries < capacity.head // BLOCK_ROWS) | (entries >= floor // BLOCK_ROWS)]
