"""The keys and values of all sequences of the CPU target, in one buffer that is divided into blocks of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import CacheFullError, EdgedecError, UsageError
from edgedec.onnx.kv_cache import BLOCK_ROWS, CacheLayout, blocks_of
from edgedec.runtime.cache_blocks import BlockArena, BlockState
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.attention import KvBuffer
from edgedec.runtime.protocols import I32, U64
from edgedec.runtime.targets._heap import release_pages, use_small_pages
from edgedec.runtime.targets._slots import RecurrentSlots

__all__ = ["ArenaState", "CacheArena"]


class CacheArena(BlockArena):
    """The blocks of the CPU target, and their memory.

    Members:
        buffer: the keys and values.
        heads: views of its key/value heads, see ``KvBuffer.heads``.
        slots: the slots of recurrent states; None: the model has none.
    """

    def __init__(
        self, kernels: Kernels, layout: CacheLayout, positions: int, slots: RecurrentSlots | None = None
    ) -> None:
        self.slots = slots
        self.buffer = KvBuffer(kernels, layout)
        super().__init__(self.buffer, layout.blocks, positions)
        self.heads = self.buffer.heads()

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
    def block_bytes(self) -> int:
        """Bytes of a block of rows in all states."""
        return sum(view.shape[1] for head in self.heads for view in head)

    @property
    def idle_bytes(self) -> int:
        """Bytes of free blocks whose memory ``release_pages`` would give back to the system, at most."""
        return len(self._stale) * self.block_bytes

    def release_pages(self) -> None:
        """Give the pages that hold nothing but free blocks back to the system. A later pass gets new ones.

        From then on it gets small ones. With huge pages a single row, which has a part for each head, would take nearly all
        pages again at once, while other programs still need them.
        """
        self._collect()
        use_small_pages(self.buffer.cache)
        free = np.zeros(len(self._holders) + 2, np.int8)
        free[np.array(self._free, np.intp) + 1] = 1
        begins, ends = (np.flatnonzero(np.diff(free) == step) for step in (1, -1))
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            if self._stale.isdisjoint(range(begin, end)):
                continue
            for head in self.heads:
                for view in head:
                    release_pages(view[begin:end])
        self._stale.clear()


class ArenaState(BlockState):
    """The cache of one sequence of the CPU target, whose rows can be moved to a file and back."""

    arena: CacheArena

    def rows_layout(self) -> str:
        """Return the sizes of the states of a row."""
        states = self.arena.buffer.layout.states.values()
        sizes = (f"{state.name} {state.kv_heads} x {state.head_dim} x {state.bits}" for state in states)
        return f"blocks of {BLOCK_ROWS}: {', '.join(sizes)}"

    def part_sizes(self, rows: int) -> list[int]:
        """Return the bytes of each key/value head of ``rows`` rows, whole blocks."""
        return [blocks_of(rows) * sum(view.shape[1] for view in head) for head in self.arena.heads]

    def read_part(self, part: int) -> NDArray[np.uint8]:
        """Return a copy of the rows' blocks of a key/value head, uint8 [bytes]."""
        self.check_open()
        table = self._table[: blocks_of(self.length)]
        return np.concatenate([view[table].reshape(-1) for view in self.arena.heads[part]])

    def write_part(self, part: int, data: NDArray[np.uint8]) -> None:
        """Write the first blocks of a key/value head, of which ``data`` uint8 [bytes] has at least those of the rows."""
        self.check_open()
        views, held = self.arena.heads[part], blocks_of(self.length)
        blocks, begin = len(data) // sum(view.shape[1] for view in views), 0
        for view in views:
            end = begin + blocks * view.shape[1]
            view[self._table[:held]] = data[begin:end].reshape(blocks, view.shape[1])[:held]
            begin = end


class RecurrentArenaState(ArenaState):
    """The cache of one sequence of a model with recurrent states, which can go back to its present length or to nothing.

    Members:
        slot: the slot of its states; None until its first pass.
        visible: mask of the last pass, as in ``Pass``.
    """

    slot: int | None = None
    visible: U64 | None = None

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

    def truncate(self, length: int) -> None:
        """Keep all committed rows if ``length`` is their number, and none if it is less.

        Raises:
            UsageError: there are fewer rows.
        """
        if 0 <= length < self.length:
            length = 0
        super().truncate(length)
        if not length:
            self._drop_slot()

    def fork(self) -> Self:
        """Return a sequence that shares the blocks of the committed rows and has a copy of the recurrent states.

        Raises:
            CacheFullError: no slot is free.
        """
        self.check_open()
        slot = None if self.slot is None else self._slots.copy(self.slot)
        other = super().fork()
        other.slot = slot
        return other

    def restore(self, length: int) -> None:
        """Give a sequence without rows ``length`` committed rows of undefined content.

        Raises:
            CacheFullError: too few blocks are free, or no slot.
            UsageError: the sequence has rows, or ``length`` is more than its positions.
        """
        super().restore(length)
        if length and self.slot is None:
            try:
                self.take_slot()
            except CacheFullError:
                super().truncate(0)
                raise

    def rows_layout(self) -> str:
        """Return the sizes of the states of a row, and of the recurrent states."""
        return f"{super().rows_layout()}; recurrent: {self._slots.buffer.layout.numbers().tolist()}"

    def part_sizes(self, rows: int) -> list[int]:
        """Return the bytes of each key/value head of ``rows`` rows, and of the recurrent states with a number of rows."""
        return [*super().part_sizes(rows), 8 + 4 * self._slots.buffer.layout.state_floats]

    def read_part(self, part: int) -> NDArray[np.uint8]:
        """Return a copy of the rows' blocks of a key/value head, or of the recurrent states, uint8 [bytes]."""
        if part < len(self.arena.heads):
            return super().read_part(part)
        self.check_open()
        assert self.slot is not None
        states = self._slots.buffer.states(self.slot).view(np.uint8)
        return np.concatenate([np.array([self.length], np.int64).view(np.uint8), states])

    def write_part(self, part: int, data: NDArray[np.uint8]) -> None:
        """Write the first blocks of a key/value head, or the recurrent states.

        Raises:
            EdgedecError: the recurrent states are those of another number of rows.
        """
        if part < len(self.arena.heads):
            super().write_part(part, data)
            return
        self.check_open()
        rows = int(data[:8].copy().view(np.int64)[0])
        if rows != self.length:
            raise EdgedecError(f"the recurrent states are those after {rows} rows, not after {self.length}")
        assert self.slot is not None
        self._slots.buffer.states(self.slot).view(np.uint8)[...] = data[8:]

    def close(self) -> None:
        """Give the blocks and the slot back. A second call does nothing."""
        super().close()
        self._drop_slot()

    def __del__(self) -> None:  # the garbage collector calls it in any thread
        super().__del__()
        if self.slot is not None:
            self._slots.abandon(self.slot)
