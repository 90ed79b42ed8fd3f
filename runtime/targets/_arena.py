"""The keys and values of all sequences of the CPU target, in one buffer that is divided into blocks of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.onnx.kv_cache import BLOCK_ROWS, CacheLayout, blocks_of
from edgedec.runtime.block_pool import BlockPool, HeldRows
from edgedec.runtime.cache_blocks import BlockArena, BlockState
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.attention import KvBuffer
from edgedec.runtime.targets._heap import release_pages, use_small_pages

__all__ = ["ArenaState", "CacheArena"]


class CacheArena(BlockArena):
    """The blocks of the CPU target, and their memory.

    Members:
        buffer: the keys and values.
        heads: views of its key/value heads, see ``KvBuffer.heads``.
        kinds: kind of each head's state.
        kind_bytes: bytes of a block of each kind.
    """

    def __init__(self, kernels: Kernels, layout: CacheLayout, positions: int) -> None:
        self.buffer = KvBuffer(kernels, layout)
        pools = [BlockPool(kind, blocks) for kind, blocks in zip(layout.kinds, layout.blocks, strict=True)]
        super().__init__(self.buffer, pools, positions)
        self.heads = self.buffer.heads()
        self.kinds = [layout.kind_of[name] for name, state in layout.states.items() for _ in range(state.kv_heads)]
        self.kind_bytes = [0] * len(pools)
        for kind, head in zip(self.kinds, self.heads, strict=True):
            self.kind_bytes[kind] += sum(view.shape[1] for view in head)

    def open(self) -> ArenaState:
        """Return a sequence without rows and blocks."""
        return ArenaState(self, self.empty_table())

    @property
    def idle_bytes(self) -> int:
        """Bytes of free blocks whose memory ``release_pages`` would give back to the system, at most."""
        return sum(len(pool.stale) * size for pool, size in zip(self.pools, self.kind_bytes, strict=True))

    def release_pages(self) -> None:
        """Give the pages that hold nothing but free blocks back to the system. A later pass gets new ones.

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


class ArenaState(BlockState):
    """The cache of one sequence of the CPU target, whose rows can be moved to a file and back."""

    arena: CacheArena

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
            for name, state in layout.states.items()
        )
        return f"blocks of {BLOCK_ROWS}: {', '.join(sizes)}"

    def part_sizes(self, held: HeldRows) -> list[int]:
        """Return the bytes of each key/value head of the rows of a sequence, whole blocks."""
        blocks = self.blocks_for(held, held.rows)
        heads = zip(self.arena.kinds, self.arena.heads, strict=True)
        return [blocks[kind] * sum(view.shape[1] for view in head) for kind, head in heads]

    def fits(self, held: HeldRows, length: int) -> bool:
        """Return whether blocks are free for ``restore``, or for passes over these rows, and for the row after them."""
        slacks = [blocks_of(pool.capacity.slack) for pool in self.arena.pools]
        counts = zip(self.blocks_for(held, length), slacks, strict=True)
        return self.arena.has_room([count + slack + 1 for count, slack in counts])

    def read_part(self, part: int) -> NDArray[np.uint8]:
        """Return a copy of the rows' blocks of a key/value head, uint8 [bytes]."""
        self.check_open()
        kind = self.arena.kinds[part]
        table = self._table[kind, self.held_rows.blocks(kind, self.length)]
        return np.concatenate([view[table].reshape(-1) for view in self.arena.heads[part]])

    def write_part(self, part: int, data: NDArray[np.uint8], held: HeldRows) -> None:
        """Write the blocks of a key/value head, the first of those that ``data`` uint8 [bytes] has of the rows ``held``."""
        self.check_open()
        views, kind = self.arena.heads[part], self.arena.kinds[part]
        own = self._table[kind, held.blocks(kind, self.length)]
        blocks, begin = len(data) // sum(view.shape[1] for view in views), 0
        for view in views:
            end = begin + blocks * view.shape[1]
            view[own] = data[begin:end].reshape(blocks, view.shape[1])[: len(own)]
            begin = end
