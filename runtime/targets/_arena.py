"""The keys and values of all sequences of the CPU target, in one buffer that is divided into blocks of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.onnx.kv_cache import BLOCK_ROWS, CacheLayout, blocks_of
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
    """

    def __init__(self, kernels: Kernels, layout: CacheLayout, positions: int) -> None:
        self.buffer = KvBuffer(kernels, layout)
        super().__init__(self.buffer, layout.blocks, positions)
        self.heads = self.buffer.heads()

    def open(self) -> ArenaState:
        """Return a sequence without rows and blocks."""
        return ArenaState(self, self.empty_table())

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
