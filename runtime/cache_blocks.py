"""Blocks of rows that sequences share: who holds which, and when one is copied.

A sequence holds the blocks of its rows. Sequences that were forked from one another share the blocks of their common rows,
and a block is copied when one of several holders is about to write to it. The rows themselves are in a ``BlockBuffer``, on
the host or on a device.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np

from edgedec.errors import CacheFullError, UsageError
from edgedec.onnx.kv_cache import BLOCK_ROWS, blocks_of
from edgedec.runtime.protocols import I32

__all__ = ["BlockArena", "BlockBuffer", "BlockState"]


class BlockBuffer(Protocol):
    """The memory of the blocks."""

    def copy_block(self, source: int, to: int) -> None:
        """Copy a block of rows of all states."""

    def move(self, blocks: I32, start: int, nodes: I32) -> None:
        """Copy row ``start + nodes[i]`` of the sequence with the table ``blocks`` to its row ``start + i``, for every i.

        Raises:
            EdgedecError: ``nodes`` do not ascend.
        """


class BlockArena:
    """The number of sequences that hold each of some blocks.

    The lowest free block is taken first, so a sequence that is alone has its rows one after another.

    Parameters:
        rows: the memory of the blocks.
        blocks: number of blocks.

    Members:
        positions: maximum rows of a sequence.
    """

    def __init__(self, rows: BlockBuffer, blocks: int, positions: int) -> None:
        self._rows, self.positions = rows, positions
        self._holders = [0] * blocks
        self._free = list(range(blocks))  # a heap
        self._stale: set[int] = set()  # free blocks that were written to, whose pages are still there
        self._abandoned: deque[I32] = deque()  # blocks of states that were not closed, until ``_collect``

    @property
    def free_rows(self) -> int:
        """Rows of the blocks that no sequence holds."""
        self._collect()
        return BLOCK_ROWS * len(self._free)

    def abandon(self, blocks: I32) -> None:
        """Release blocks later. Unlike ``release``, any thread may call this, at any time."""
        self._abandoned.append(blocks)

    def _collect(self) -> None:
        """Release the blocks of states that were not closed."""
        while self._abandoned:
            self.release(self._abandoned.popleft())

    def empty_table(self) -> I32:
        """Return room for the table of blocks of a sequence."""
        return np.empty(blocks_of(self.positions), np.int32)

    def move(self, blocks: I32, start: int, nodes: I32) -> None:
        """Copy rows of a sequence to earlier places: ``BlockBuffer.move``."""
        self._rows.move(blocks, start, nodes)

    def reserve(self, work: Sequence[tuple[BlockState, int]]) -> None:
        """Take the blocks for numbers of new rows of sequences, and copy shared blocks to which they are written.

        Raises:
            CacheFullError: too few blocks are free. Nothing has changed then.
        """
        self._collect()
        needed, shared = 0, list[int]()
        for state, rows in work:
            missing = blocks_of(state.length + rows) - state.held
            if missing > 0:
                needed += missing
            block = state.last_block()
            if block is not None and self._holders[block] > 1:
                shared.append(block)
        # The last holder of a block writes to it in place.
        needed += sum(min(count, self._holders[block] - 1) for block, count in Counter(shared).items()) if shared else 0
        if needed > len(self._free):
            raise CacheFullError(
                f"the caches of all sequences together are full: the pass needs {needed} more blocks of {BLOCK_ROWS} rows, "
                f"and {len(self._free)} of {len(self._holders)} are free; close or truncate a sequence, or load the model "
                "with more cache_rows"
            )
        if not needed:
            return
        for state, rows in work:
            block = state.last_block()
            if block is not None and self._holders[block] > 1:
                copy = self._take()
                self._rows.copy_block(block, copy)
                state.replace_last(copy)
                self._holders[block] -= 1
            for _ in range(state.held, blocks_of(state.length + rows)):
                state.append(self._take())

    def extend(self, state: BlockState, rows: int) -> None:
        """Take the blocks for ``rows`` rows of a sequence without blocks.

        Raises:
            CacheFullError: too few blocks are free. Nothing has changed then.
        """
        self._collect()
        needed = blocks_of(rows)
        if needed > len(self._free):
            raise CacheFullError(
                f"{rows} rows need {needed} blocks of {BLOCK_ROWS} rows, and {len(self._free)} of {len(self._holders)} are "
                "free; close or truncate a sequence, or load the model with more cache_rows"
            )
        for _ in range(needed):
            state.append(self._take())

    def _take(self) -> int:
        block = heapq.heappop(self._free)
        self._holders[block] = 1
        self._stale.discard(block)
        return block

    def hold(self, blocks: I32) -> None:
        """Count one more holder of each block."""
        for block in blocks.tolist():
            self._holders[block] += 1

    def release(self, blocks: I32) -> None:
        """Count one holder less of each block."""
        for block in blocks.tolist():
            self._holders[block] -= 1
            if not self._holders[block]:
                heapq.heappush(self._free, block)
                self._stale.add(block)


class BlockState:
    """The cache of one sequence. A state that is no longer referenced gives its blocks back, as ``close`` does.

    Members:
        arena: the arena of the blocks.
        length: number of committed rows.
        held: number of blocks.
    """

    commit_seconds: float | None = None

    def __init__(self, arena: BlockArena, table: I32) -> None:
        self.arena, self._table = arena, table
        self.length = self.held = 0
        self._rows = 0  # rows of the last pass, until they are committed or discarded
        self._closed = False

    @property
    def table(self) -> I32:
        """The block of each 16 rows, int32 [held]."""
        return self._table[: self.held]

    def check_open(self) -> None:
        """Check that the sequence may be used.

        Raises:
            UsageError: it was closed.
        """
        if self._closed:
            raise UsageError("the sequence was closed; open another one with Target.open")

    def last_block(self) -> int | None:
        """Return the block to which the next row goes if it holds rows already; None: the row begins a new block."""
        return int(self._table[self.length // BLOCK_ROWS]) if self.length % BLOCK_ROWS else None

    def replace_last(self, block: int) -> None:
        """Put ``block`` in the place of ``last_block``."""
        self._table[self.length // BLOCK_ROWS] = block

    def append(self, block: int) -> None:
        """Add a block to the table."""
        self._table[self.held] = block
        self.held += 1

    def reserve(self, rows: int) -> tuple[I32, int]:
        """Take the blocks for ``rows`` new rows. Return the whole table, int32 [blocks], and the number of blocks in it.

        Raises:
            CacheFullError: too few blocks are free. Nothing has changed then.
            UsageError: the sequence was closed.
        """
        self.check_open()
        self.arena.reserve([(self, rows)])
        return self._table, self.held

    def advance(self, length: int) -> None:
        """Note that all rows up to ``length`` were written to reserved blocks and are committed."""
        self._keep(length)

    def passed(self, rows: int) -> None:
        """Note that a pass has written ``rows`` rows after the committed ones."""
        self._rows = rows

    def commit(self, nodes: I32) -> None:
        """Append rows of the last pass; blocks without committed rows are given back.

        Raises:
            UsageError: the last pass does not have these rows, or they are committed already.
            EdgedecError: the rows are not in ascending order.
        """
        self.check_open()
        count = len(nodes)
        if count:
            last = int(nodes[-1])
            if last >= self._rows:
                raise UsageError(f"row {last} cannot be committed: {self._rows} rows of the last pass are left")
            if last != count - 1:  # nodes ascend, so otherwise every row is in its place already
                self.arena.move(self.table, self.length, nodes)
        self._keep(self.length + count)

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` committed rows; blocks without committed rows are given back.

        Raises:
            UsageError: there are fewer rows.
        """
        self.check_open()
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot go back to {length} rows, there are {self.length}")
        self._keep(length)

    def _keep(self, length: int) -> None:
        self.length, self._rows = length, 0
        kept = blocks_of(length)
        if kept < self.held:
            self.arena.release(self._table[kept : self.held])
            self.held = kept

    def fork(self) -> Self:
        """Return a sequence that shares the blocks of the committed rows."""
        self.check_open()
        other = type(self)(self.arena, self._table.copy())
        other.length, other.held = self.length, blocks_of(self.length)
        self.arena.hold(other.table)
        return other

    def restore(self, length: int) -> None:
        """Give a sequence without rows ``length`` committed rows of undefined content.

        Raises:
            CacheFullError: too few blocks are free.
            UsageError: the sequence has rows, or ``length`` is more than its positions.
        """
        self.check_open()
        if self.length or not 0 <= length <= self.arena.positions:
            raise UsageError(
                f"{length} rows can be restored to a sequence without rows and with as many positions, "
                f"not to one with {self.length} of {self.arena.positions}"
            )
        self._keep(0)
        self.arena.extend(self, length)
        self.length = length

    def close(self) -> None:
        """Give the blocks back. A second call does nothing."""
        if not self._closed:
            self._keep(0)
            self._closed = True

    def __del__(self) -> None:  # the garbage collector calls it in any thread
        if not self._closed and self.held:
            self.arena.abandon(self.table)
