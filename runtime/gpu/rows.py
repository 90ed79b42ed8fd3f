"""The rows of the cache on a device: moves and copies, which wait for the next submission."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.onnx.kv_cache import BLOCK_ROWS
from edgedec.runtime.cache_blocks import BlockArena, BlockState
from edgedec.runtime.protocols import I32

__all__ = ["GpuRows", "GpuState"]


class GpuRows:
    """A ``BlockBuffer`` on a device. Rows are named by slots: 16 * block + row in the block."""

    def __init__(self) -> None:
        self._pairs: deque[tuple[int, int]] = deque()

    def copy_block(self, source: int, to: int) -> None:
        """Copy a block of rows of all states."""
        self._pairs.extend((BLOCK_ROWS * source + row, BLOCK_ROWS * to + row) for row in range(BLOCK_ROWS))

    def move(self, blocks: I32, start: int, nodes: I32) -> None:
        """Copy row ``start + nodes[i]`` of a sequence to its row ``start + i``, for every i.

        Raises:
            EdgedecError: ``nodes`` do not ascend.
        """
        rows = nodes.tolist()
        if any(later <= earlier for earlier, later in zip([-1, *rows], rows, strict=False)):
            raise EdgedecError(f"rows {rows} cannot be kept; name them in ascending order")
        for to, node in enumerate(rows):
            if node != to:
                self._pairs.append((_slot(blocks, start + node), _slot(blocks, start + to)))

    @property
    def waiting(self) -> int:
        """Number of pairs that wait."""
        return len(self._pairs)

    def take(self, most: int) -> NDArray[np.uint32]:
        """Return the contents of the program's buffer ``moves`` for the next ``most`` pairs, which no longer wait."""
        pairs = [self._pairs.popleft() for _ in range(min(most, len(self._pairs)))]
        return np.array([len(pairs), *(slot for pair in pairs for slot in pair)], np.uint32)


def _slot(blocks: I32, row: int) -> int:
    return BLOCK_ROWS * int(blocks[row // BLOCK_ROWS]) + row % BLOCK_ROWS


class GpuState(BlockState):
    """The cache of one sequence of the target ``gpu``."""

    @classmethod
    def opened(cls, arena: BlockArena) -> GpuState:
        """Return a sequence without rows and blocks."""
        return cls(arena, arena.empty_table())
