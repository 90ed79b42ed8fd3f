"""The keys and values of all sequences of the CPU target, in one buffer that is divided into blocks of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgedec.digests import sha256
from edgedec.errors import CacheFullError, UsageError
from edgedec.memory.heap import release_pages, use_small_pages
from edgedec.onnx.kv_cache import BLOCK_ROWS, CacheLayout, blocks_of
from edgedec.runtime.cache.block_pool import BlockPool, HeldRows
from edgedec.runtime.cache.cache_blocks import BlockArena, BlockState
from edgedec.runtime.cache.slots import RecurrentSlots, Snapshot
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.attention.attention import KvBuffer
from edgedec.runtime.kernels.attention.value_file import FiledHead
from edgedec.runtime.protocols import I32, U64

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ArenaState", "CacheArena"]


class CacheArena(BlockArena):
    """The blocks of the CPU target, and their memory.

    Members:
        buffer: the keys and values.
        heads: views of its key/value heads, see ``KvBuffer.heads``.
        filed: their values in a file, see ``KvBuffer.filed_heads``.
        kinds: kind of each head's state.
        kind_bytes: bytes of a block of each kind.
        slots: the slots of recurrent states; None: the model has none.
    """

    def __init__(
        self, kernels: Kernels, layout: CacheLayout, positions: int, slots: RecurrentSlots | None = None
    ) -> None:
        self.slots = slots
        self.buffer = KvBuffer(kernels, layout)
        pools = [BlockPool(kind, blocks) for kind, blocks in zip(layout.kinds, layout.blocks, strict=True)]
        super().__init__(self.buffer, pools, positions)
        self.heads, self.filed = self.buffer.heads(), self.buffer.filed_heads()
        self.kinds = [layout.kind_of[name] for name, state in layout.states.items() for _ in range(state.kv_heads)]
        self.kind_bytes = [0] * len(pools)
        for kind, head in zip(self.kinds, self.heads, strict=True):
            self.kind_bytes[kind] += sum(view.shape[1] for view in head)

    def parts(self, head: int) -> tuple[NDArray[np.uint8] | FiledHead, ...]:
        """Return what a key/value head has in memory and in the file, [blocks, bytes of a block] each."""
        return (*self.heads[head], *self.filed[head])

    def part_bytes(self, head: int) -> int:
        """Return the bytes of a block of a key/value head, in memory and in the file."""
        return sum(part.shape[1] for part in self.parts(head))

    def open(self) -> ArenaState:
        """Return a sequence without rows and blocks."""
        return (ArenaState if self.slots is None else RecurrentArenaState)(self, self.empty_table())

    def reserve(self, work: Sequence[tuple[BlockState, int]]) -> None:
        """Take the blocks for numbers of new rows of sequences, and slots for their recurrent states.

        Raises:
            CacheFullError: too few are free. Nothing has changed then.
        """
        without = [state for state, _ in work if isinstance(state, RecurrentArenaState) and state.slot is None]
        if self.slots is not None:
            self.slots.require(len(without))
        super().reserve(work)
        for state in without:
            state.take_slot()

    @property
    def idle_bytes(self) -> int:
        """Bytes of free blocks and slots whose memory ``release_pages`` would give back to the system, at most."""
        slots = 0 if self.slots is None else self.slots.idle_bytes
        return slots + sum(len(pool.stale) * size for pool, size in zip(self.pools, self.kind_bytes, strict=True))

    def release_pages(self) -> None:
        """Give the pages that hold nothing but free blocks or slots back to the system. A later pass gets new ones.

        From then on it gets small ones. With huge pages a single row, which has a part for each head, would take nearly all
        pages again at once, while other programs still need them.
        """
        self.collect()
        use_small_pages(self.buffer.cache)
        for number, pool in enumerate(self.pools):
            free = np.zeros(len(pool.holders) + 2, np.int8)
            free[np.array(pool.free, np.intp) + 1] = 1
            begins, ends = (np.flatnonzero(np.diff(free) == step) for step in (1, -1))
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                if pool.stale.isdisjoint(range(begin, end)):
                    continue
                for kind, head in zip(self.kinds, self.heads, strict=True):
                    for view in head if kind == number else ():
                        release_pages(view[begin:end])
            pool.stale.clear()
        if self.slots is not None:
            self.slots.release_pages()


class ArenaState(BlockState):
    """The cache of one sequence of the CPU target, whose rows can be moved to a file and back.

    Members:
        slot: the slot of its recurrent states; None: it has none, or had no pass yet.
    """

    arena: CacheArena
    slot: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks; those that several sequences share count for each of them."""
        blocks = zip(self._live(0, self.held), self.arena.kind_bytes, strict=True)
        return sum(len(own) * size for own, size in blocks)

    def rows_layout(self) -> str:
        """Return the sizes of the states of a row, and the rows that they keep."""
        layout = self.arena.buffer.layout
        sizes = (
            f"{name}, {layout.kinds[layout.kind_of[name]]}, {state.kv_heads} x {state.head_dim} x {state.bits}"
            + ("" if state.selection is None else f", {state.selection}")
            + ("" if state.basis is None else f", basis {sha256(state.basis.directions).hexdigest()}")
            + (", values apart" if name in layout.filed else "")
            for name, state in layout.states.items()
        )
        return f"blocks of {BLOCK_ROWS}: {', '.join(sizes)}"

    def part_sizes(self, held: HeldRows) -> list[int]:
        """Return the bytes of each key/value head of the rows of a sequence, whole blocks."""
        blocks = self.blocks_for(held, held.rows)
        return [blocks[kind] * self.arena.part_bytes(part) for part, kind in enumerate(self.arena.kinds)]

    def fits(self, held: HeldRows, length: int) -> bool:
        """Return whether blocks are free for ``restore``, or for passes over these rows, and for the row after them."""
        slacks = [blocks_of(pool.capacity.slack) for pool in self.arena.pools]
        counts = zip(self.blocks_for(held, length), slacks, strict=True)
        return self.arena.has_room([count + slack + 1 for count, slack in counts])

    def read_part(self, part: int) -> NDArray[np.uint8]:
        """Return a copy of the rows' blocks of a key/value head, uint8 [bytes].

        Raises:
            DeviceError: values are in a file that cannot be read.
        """
        self.check_open()
        kind = self.arena.kinds[part]
        table = self._table[kind, self.held_rows.blocks(kind, self.length)]
        return np.concatenate([view[table].reshape(-1) for view in self.arena.parts(part)])

    def write_part(self, part: int, data: NDArray[np.uint8], held: HeldRows) -> None:
        """Write the blocks of a key/value head, the first of those that ``data`` uint8 [bytes] has of the rows ``held``.

        Raises:
            DeviceError: values are in a file that cannot be written.
        """
        self.check_open()
        views, kind = self.arena.parts(part), self.arena.kinds[part]
        own = self._table[kind, held.blocks(kind, self.length)]
        blocks, begin = len(data) // self.arena.part_bytes(part), 0
        for view in views:
            end = begin + blocks * view.shape[1]
            view[own] = data[begin:end].reshape(blocks, view.shape[1])[: len(own)]
            begin = end


class RecurrentArenaState(ArenaState):
    """The cache of one sequence of a model with recurrent states, which can go back to snapshots or to nothing.

    Members:
        visible: mask of the last pass, as in ``Pass``.
    """

    goes_back = False
    visible: U64 | None = None
    _snapshots: tuple[Snapshot, ...] = ()  # ascending by length; a fork has the same objects

    @property
    def _slots(self) -> RecurrentSlots:
        assert self.arena.slots is not None
        return self.arena.slots

    def take_slot(self) -> None:
        """Take a slot, whose states are zero."""
        self.slot = self._slots.take()

    def _drop_slot(self) -> None:
        if self.slot is not None:
            self._slots.release(self.slot)
            self.slot = None

    def commit(self, nodes: I32) -> None:
        """Append rows of the last pass, a path from its root; blocks without committed rows are given back.

        Raises:
            UsageError: the last pass does not have these rows, they are committed already, or they are no path.
            EdgedecError: the rows are not in ascending order.
        """
        if len(nodes):
            self._check_path(nodes.tolist())
        super().commit(nodes)
        if len(nodes):
            assert self.slot is not None
            self._slots.commit(self.slot, nodes)

    def _check_path(self, nodes: list[int]) -> None:
        """Check that each row is the parent of the next one, and the first one follows the committed rows."""
        last = nodes[-1]
        if last >= self._rows:
            return  # ``commit`` refuses it
        row = (2 << last) - 1 if self.visible is None else int.from_bytes(self.visible[last].tobytes(), "little")
        if row != sum(1 << node for node in nodes):
            raise UsageError(
                f"rows {nodes} cannot be committed: row {last} of the pass sees other rows, and a recurrent state continues "
                "that of a path"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks and of the slot."""
        return super().nbytes + (0 if self.slot is None else self._slots.slot_bytes)

    @property
    def held_rows(self) -> HeldRows:
        """The rows that the blocks and the slot have."""
        return replace(super().held_rows, recurrent=True)

    def snapshot(self, instead_of: int | None = None) -> None:
        """Keep the recurrent states after the committed rows, so that ``truncate`` can go back to them.

        The snapshot after ``instead_of`` rows, if there is one, makes room for it.
        """
        self.check_open()
        if self.slot is None or self._snapshot_of(self.length) is not None:
            return
        self._snapshots = tuple(one for one in self._snapshots if one.length != instead_of)
        made = self._slots.snapshots.keep(self.length, self._slots.buffer.states(self.slot))
        if made is not None:
            self._snapshots = (*(one for one in self._snapshots if one.states is not None), made)

    def _snapshot_of(self, length: int) -> Snapshot | None:
        return next((one for one in self._snapshots if one.length == length and one.states is not None), None)

    def reach(self, length: int) -> int:
        """Return the largest number of first rows up to ``length`` that are all committed rows or have a snapshot, or 0."""
        if length >= self.length:
            return self.held_rows.reach(self.length)
        rows = replace(self.held_rows, recurrent=False)  # a ring may have dropped rows of a snapshot
        kept = (one.length for one in self._snapshots if one.length <= length and one.states is not None)
        return max((count for count in kept if rows.reach(count) == count), default=0)

    def truncate(self, length: int) -> int:
        """Keep the first ``length`` committed rows, or fewer: those of the last snapshot before, or none.

        Returns:
            The number of rows that are left: ``reach(length)``.

        Raises:
            UsageError: there are fewer rows.
        """
        before = self.length
        left = super().truncate(length)
        snapshot = self._snapshot_of(left)
        if not left:
            self._drop_slot()
        elif left < before:
            assert self.slot is not None
            assert snapshot is not None
            self._slots.snapshots.restore(snapshot, self._slots.buffer.states(self.slot))
        self._snapshots = tuple(one for one in self._snapshots if one.length <= left)
        return left

    def fork(self) -> Self:
        """Return a sequence that shares the blocks of the committed rows and has a copy of the recurrent states.

        Raises:
            CacheFullError: no slot is free.
        """
        self.check_open()
        slot = None if self.slot is None else self._slots.copy(self.slot)
        other = super().fork()
        other.slot, other._snapshots = slot, self._snapshots
        return other

    def fits(self, held: HeldRows, length: int) -> bool:
        """Return whether blocks and a slot are free for ``restore``, or for passes over these rows."""
        return (self.slot is not None or self._slots.free > 0) and super().fits(held, length)

    def restore(self, held: HeldRows, length: int) -> None:
        """Give a sequence without rows all rows of another sequence, or none, with undefined content.

        Raises:
            CacheFullError: too few blocks are free, or no slot.
            UsageError: the sequence has rows, or ``length`` is more than its positions or not the number of all rows.
        """
        super().restore(held, length)
        if length and self.slot is None:
            try:
                self.take_slot()
            except CacheFullError:
                super().truncate(0)
                raise

    def rows_layout(self) -> str:
        """Return the sizes of the states of a row, and of the recurrent states."""
        return f"{super().rows_layout()}; recurrent: {self._slots.buffer.layout.numbers().tolist()}"

    def part_sizes(self, held: HeldRows) -> list[int]:
        """Return the bytes of each key/value head of the rows of a sequence, and of the recurrent states."""
        return [*super().part_sizes(held), 4 * self._slots.buffer.layout.state_floats]

    def read_part(self, part: int) -> NDArray[np.uint8]:
        """Return a copy of the rows' blocks of a key/value head, or of the recurrent states, uint8 [bytes]."""
        if part < len(self.arena.heads):
            return super().read_part(part)
        self.check_open()
        assert self.slot is not None
        return self._slots.buffer.states(self.slot).view(np.uint8).copy()

    def write_part(self, part: int, data: NDArray[np.uint8], held: HeldRows) -> None:
        """Write the blocks of a key/value head, or the recurrent states, which are those after all rows ``held``."""
        if part < len(self.arena.heads):
            super().write_part(part, data, held)
        elif self.slot is not None:  # otherwise no row was restored
            self._slots.buffer.states(self.slot).view(np.uint8)[...] = data

    def close(self) -> None:
        """Give the blocks and the slot back. A second call does nothing."""
        super().close()
        self._drop_slot()
        self._snapshots = ()

    def __del__(self) -> None:  # the garbage collector calls it in any thread
        super().__del__()
        if self.slot is not None:
            self._slots.abandon(self.slot)
