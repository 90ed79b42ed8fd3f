"""Blocks of rows that sequences share: who holds which, and when one is copied.

A sequence holds the blocks of its rows. Sequences that were forked from one another share the blocks of their common rows,
and a block is copied when one of several holders is about to write to it. The rows themselves are in a ``BlockBuffer``, on
the host or on a device.

States of a model may keep different rows (edgedec/graph/capacity.py). Those that keep the same are of one kind, and have
blocks and tables of their own. A sequence gives the blocks of rows that no query will see any more back to their pool, so a
ring is a part of a pool and not a place: no row is written over as long as a sequence may need it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from edgedec.errors import CacheFullError, EdgedecError, UsageError
from edgedec.graph.capacity import Capacity
from edgedec.onnx.kv_cache import BLOCK_ROWS, blocks_of
from edgedec.runtime.cache.block_pool import BlockPool, HeldRows
from edgedec.runtime.protocols import I32

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["BlockArena", "BlockBuffer", "BlockState"]

_FULL = Capacity(unit=BLOCK_ROWS)
_DROPPED = 0  # entry of a table for a block that was dropped; no query reads its rows


class BlockBuffer(Protocol):
    """The memory of the blocks."""

    def copy_block(self, kind: int, source: int, to: int) -> None:
        """Copy a block of rows of all states of a kind."""

    def move(self, blocks: I32, start: int, nodes: I32) -> None:
        """Copy row ``start + nodes[i]`` of the sequence with the tables ``blocks`` to its row ``start + i``, for every i.

        Raises:
            EdgedecError: ``nodes`` do not ascend.
        """


class BlockArena:
    """The blocks of all sequences.

    Parameters:
        rows: the memory of the blocks.
        blocks: number of blocks, or a pool for each kind of states.
        positions: maximum rows of a sequence.

    Members:
        positions: the parameter of this name.
        pools: blocks of each kind.
    """

    def __init__(self, rows: BlockBuffer, blocks: int | Sequence[BlockPool], positions: int) -> None:
        self._rows, self.positions = rows, positions
        self.pools = (BlockPool(_FULL, blocks),) if isinstance(blocks, int) else tuple(blocks)
        self._abandoned: deque[list[I32]] = deque()  # blocks of states that were not closed, until ``collect``

    @property
    def free_rows(self) -> int:
        """Rows of the blocks that no sequence holds, of the kind that has the fewest."""
        self.collect()
        return BLOCK_ROWS * min(len(pool.free) for pool in self.pools)

    def abandon(self, blocks: list[I32]) -> None:
        """Release blocks of each kind later. Unlike ``release``, any thread may call this, at any time."""
        self._abandoned.append(blocks)

    def collect(self) -> None:
        """Release the blocks of states that were not closed."""
        while self._abandoned:
            self.release(self._abandoned.popleft())

    def empty_table(self) -> I32:
        """Return room for the tables of blocks of a sequence, int32 [kinds, entries]."""
        return np.full((len(self.pools), blocks_of(self.positions)), _DROPPED, np.int32)

    def move(self, blocks: I32, start: int, nodes: I32) -> None:
        """Copy rows of a sequence to earlier places: ``BlockBuffer.move``."""
        self._rows.move(blocks, start, nodes)

    def reserve(self, work: Sequence[tuple[BlockState, int]]) -> None:
        """Take the blocks for numbers of new rows of sequences, and copy shared blocks to which they are written.

        Raises:
            CacheFullError: too few blocks are free. Nothing has changed then.
            EdgedecError: a shared block cannot be copied, because values are in a file. Blocks that were copied stay so.
        """
        self.collect()
        new = 0
        for state, rows in work:
            missing = blocks_of(state.length + rows) - state.held
            if missing > 0:
                new += missing
        copied = False
        for kind, pool in enumerate(self.pools):
            shared = [block for state, _ in work if (block := self._shared_last(state, kind)) is not None]
            # The last holder of a block writes to it in place.
            copies = (
                sum(min(count, pool.holders[block] - 1) for block, count in Counter(shared).items()) if shared else 0
            )
            copied = copied or copies > 0
            if new + copies > len(pool.free):
                raise CacheFullError(
                    f"the caches of all sequences together are full: the pass needs {new + copies} more blocks of "
                    f"{BLOCK_ROWS} rows, and {len(pool.free)} of {len(pool.holders)} are free; close or truncate a "
                    "sequence, or load the model with more cache_rows"
                )
        if not new and not copied:
            return
        for state, rows in work:
            for kind, pool in enumerate(self.pools) if copied else ():
                block = self._shared_last(state, kind)
                if block is not None:
                    copy = pool.take()
                    try:
                        self._rows.copy_block(kind, block, copy)
                    except EdgedecError:
                        pool.release(np.array([copy], np.int32))
                        raise
                    state.replace_last(kind, copy)
                    pool.holders[block] -= 1
            for _ in range(state.held, blocks_of(state.length + rows)):
                state.append([pool.take() for pool in self.pools])

    def _shared_last(self, state: BlockState, kind: int) -> int | None:
        """Return the block to which the next row of a sequence goes if it holds rows and others hold it, too."""
        block = state.last_block(kind)
        return None if block is None or self.pools[kind].holders[block] == 1 else block

    def has_room(self, blocks: Sequence[int]) -> bool:
        """Return whether so many blocks of each kind are free."""
        self.collect()
        return all(count <= len(pool.free) for count, pool in zip(blocks, self.pools, strict=True))

    def take(self, rows: int, blocks: Sequence[int]) -> list[list[int]]:
        """Take so many blocks of each kind, for ``rows`` rows of a sequence.

        Raises:
            CacheFullError: too few blocks are free. Nothing has changed then.
        """
        if not self.has_room(blocks):
            needed = " and ".join(map(str, blocks))
            free = " and ".join(f"{len(pool.free)} of {len(pool.holders)}" for pool in self.pools)
            raise CacheFullError(
                f"{rows} rows need {needed} blocks of {BLOCK_ROWS} rows, and {free} are free; close or truncate a "
                "sequence, or load the model with more cache_rows"
            )
        return [[pool.take() for _ in range(count)] for count, pool in zip(blocks, self.pools, strict=True)]

    def hold(self, blocks: Sequence[I32]) -> None:
        """Count one more holder of each block, by kind."""
        for pool, own in zip(self.pools, blocks, strict=True):
            pool.hold(own)

    def release(self, blocks: Sequence[I32]) -> None:
        """Count one holder less of each block, by kind."""
        for pool, own in zip(self.pools, blocks, strict=True):
            pool.release(own)


class BlockState:
    """The cache of one sequence. A state that is no longer referenced gives its blocks back, as ``close`` does.

    Members:
        arena: the arena of the blocks.
        length: number of committed rows.
        held: number of entries of each table.
        least_position: least position of a row that sees no dropped row.
        land: ends the flight that writes rows behind the committed ones (``runtime/loop/flight.py``); None: there is none.
    """

    commit_seconds: float | None = None
    land: Callable[[], None] | None = None

    def __init__(self, arena: BlockArena, table: I32) -> None:
        self.arena, self._table = arena, table
        self.length = self.held = 0
        self.least_position = 0
        self._floors = [pool.capacity.head for pool in arena.pools]  # first rows after the heads that are still there
        self._rings = [kind for kind, pool in enumerate(arena.pools) if pool.capacity.window is not None]
        self._rows = 0  # rows of the last pass, until they are committed or discarded
        self._closed = False

    @property
    def table(self) -> I32:
        """The block of each 16 rows for each kind of states, int32 [kinds, held]."""
        return self._table[:, : self.held]

    @property
    def held_rows(self) -> HeldRows:
        """The rows that the blocks have."""
        kept = zip((pool.capacity for pool in self.arena.pools), self._floors, strict=True)
        return HeldRows(self.length, tuple(kept))

    @property
    def goes_back(self) -> bool:
        """True if ``truncate`` can go back to every committed row."""
        return not self._rings

    def check_open(self) -> None:
        """Check that the sequence may be used.

        Raises:
            UsageError: it was closed.
        """
        if self._closed:
            raise UsageError("the sequence was closed; open another one with Target.open")
        if self.land is not None:
            self.land()

    def last_block(self, kind: int = 0) -> int | None:
        """Return the block to which the next row goes if it holds rows already; None: the row begins a new block."""
        return int(self._table[kind, self.length // BLOCK_ROWS]) if self.length % BLOCK_ROWS else None

    def replace_last(self, kind: int, block: int) -> None:
        """Put ``block`` in the place of ``last_block``."""
        self._table[kind, self.length // BLOCK_ROWS] = block

    def append(self, blocks: Sequence[int]) -> None:
        """Add a block to the table of each kind."""
        self._table[:, self.held] = blocks
        self.held += 1

    def reserve(self, rows: int) -> tuple[I32, int]:
        """Take the blocks for ``rows`` new rows.

        Returns:
            The whole tables, int32 [kinds, blocks], and the number of blocks in each.

        Raises:
            CacheFullError: too few blocks are free. Nothing has changed then.
            UsageError: the sequence was closed.
        """
        self.check_open()
        self.arena.reserve([(self, rows)])
        return self._table, self.held

    def advance(self, length: int, text: I32, *, held: bool = False) -> None:
        """Note that all rows up to ``length`` of a text were written to reserved blocks and are committed.

        With ``held`` the blocks behind them are kept.
        """
        if held:
            self.length = length
        else:
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

    def reach(self, length: int) -> int:
        """Return the number of first rows, at most ``length``, that ``truncate`` can go back to."""
        return self.held_rows.reach(min(length, self.length)) if self._rings else min(length, self.length)

    def truncate(self, length: int) -> int:
        """Keep the first ``length`` committed rows, or fewer; blocks without committed rows are given back.

        Returns:
            The number of rows that are left: ``reach(length)``.

        Raises:
            UsageError: there are fewer rows.
        """
        self.check_open()
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot go back to {length} rows, there are {self.length}")
        self._keep(self.reach(length))
        return self.length

    def _keep(self, length: int) -> None:
        self.length, self._rows = length, 0
        kept = blocks_of(length)
        if kept < self.held:
            self.arena.release(self._live(kept, self.held))
            self.held = kept
        if self._rings:
            self._drop()

    def _live(self, begin: int, end: int) -> list[I32]:
        """Return the blocks of entries [begin, end) of the table of each kind, without dropped ones."""
        if not self._rings:
            return [self._table[0, begin:end]]
        blocks = []
        for table, pool, floor in zip(self._table, self.arena.pools, self._floors, strict=True):
            head = min(end, pool.capacity.head // BLOCK_ROWS)
            blocks.append(np.concatenate([table[begin:head], table[max(begin, head, floor // BLOCK_ROWS) : end]]))
        return blocks

    def _drop(self) -> None:
        """Give the blocks back whose rows no query sees any more, with the slack of their capacity."""
        self.least_position = 0
        for kind in self._rings:
            pool, table = self.arena.pools[kind], self._table[kind]
            capacity, before = pool.capacity, self._floors[kind]
            floor = capacity.head if self.length <= capacity.head else max(before, capacity.floor(self.length))
            self._floors[kind] = floor
            if floor > before:
                dropped = table[before // BLOCK_ROWS : floor // BLOCK_ROWS]
                pool.release(dropped)
                dropped[...] = _DROPPED
            self.least_position = max(self.least_position, capacity.least_position(floor))

    def fork(self) -> Self:
        """Return a sequence that shares the blocks of the committed rows."""
        self.check_open()
        other = type(self)(self.arena, self._table.copy())
        other.length, other.held = self.length, blocks_of(self.length)
        other.least_position, other._floors = self.least_position, list(self._floors)
        self.arena.hold(other._live(0, other.held))
        return other

    def blocks_for(self, held: HeldRows, length: int) -> list[int]:
        """Return the number of blocks of each kind that ``restore`` takes."""
        return [len(held.blocks(kind, length)) for kind in range(len(self.arena.pools))]

    def restore(self, held: HeldRows, length: int) -> None:
        """Give a sequence without rows ``length`` committed rows of undefined content, of those of another sequence.

        Args:
            held: rows of the other sequence.
            length: number of first rows, from which that sequence could go on.

        Raises:
            CacheFullError: too few blocks are free.
            UsageError: the sequence has rows, or ``length`` is more than its positions, or the other sequence has dropped
                rows that are needed.
        """
        self.check_open()
        if self.length or not 0 <= length <= self.arena.positions:
            raise UsageError(
                f"{length} rows can be restored to a sequence without rows and with as many positions, "
                f"not to one with {self.length} of {self.arena.positions}"
            )
        possible = held.reach(min(length, held.rows))
        if possible != length:
            raise UsageError(
                f"{length} rows cannot be restored from a sequence of {held.rows} rows, whose windows have dropped some of "
                f"them or whose recurrent states are those after all of them; restore {possible}"
            )
        self._keep(0)
        for kind, blocks in enumerate(self.arena.take(length, self.blocks_for(held, length))):
            self._table[kind, : blocks_of(length)] = _DROPPED
            self._table[kind, held.blocks(kind, length)] = blocks
        self.held = blocks_of(length)
        self._floors = [floor if length > capacity.head else capacity.head for capacity, floor in held.kept]
        self._keep(length)

    def close(self) -> None:
        """Give the blocks back. A second call does nothing."""
        if not self._closed:
            self.check_open()
            self._keep(0)
            self._closed = True

    def __del__(self) -> None:  # the garbage collector calls it in any thread
        if not self._closed and self.held:
            self.arena.abandon(self._live(0, self.held))
