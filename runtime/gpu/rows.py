"""The rows of the cache on a device: their moves, which wait for the next submission, and the sequences that hold them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError, EdgedecError
from edgedec.onnx.kv_cache import BLOCK_ROWS
from edgedec.runtime.cache.cache_blocks import BlockArena, BlockState
from edgedec.runtime.protocols import I32

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["GpuArena", "GpuRows", "GpuState"]


class GpuRows:
    """A ``BlockBuffer`` on a device. Rows are named by slots: 16 * block + row in the block."""

    def __init__(self) -> None:
        self._pairs: deque[tuple[int, int]] = deque()

    def copy_block(self, kind: int, source: int, to: int) -> None:
        """Copy a block of rows of all states, which are of one kind."""
        self._pairs.extend((BLOCK_ROWS * source + row, BLOCK_ROWS * to + row) for row in range(BLOCK_ROWS))

    def move(self, blocks: I32, start: int, nodes: I32) -> None:
        """Copy row ``start + nodes[i]`` of a sequence to its row ``start + i``, for every i; ``blocks`` is int32 [1, b].

        Raises:
            EdgedecError: ``nodes`` do not ascend.
        """
        rows = nodes.tolist()
        if any(later <= earlier for earlier, later in zip([-1, *rows], rows, strict=False)):
            raise EdgedecError(f"rows {rows} cannot be kept; name them in ascending order")
        for to, node in enumerate(rows):
            if node != to:
                self._pairs.append((_slot(blocks, start + node), _slot(blocks, start + to)))

    def clear(self) -> None:
        """Forget the pairs that wait."""
        self._pairs.clear()

    @property
    def waiting(self) -> int:
        """Number of pairs that wait."""
        return len(self._pairs)

    def take(self, most: int) -> NDArray[np.uint32]:
        """Return the contents of the program's buffer ``moves`` for the next ``most`` pairs, which no longer wait."""
        pairs = [self._pairs.popleft() for _ in range(min(most, len(self._pairs)))]
        return np.array([len(pairs), *(slot for pair in pairs for slot in pair)], np.uint32)


def _slot(blocks: I32, row: int) -> int:
    return BLOCK_ROWS * int(blocks[0, row // BLOCK_ROWS]) + row % BLOCK_ROWS


class GpuArena(BlockArena):
    """The blocks of rows on a device, and the sequences that hold them."""

    def __init__(self, rows: GpuRows, blocks: int, positions: int) -> None:
        super().__init__(rows, blocks, positions)
        self._waiting, self.states = rows, WeakSet[GpuState]()

    def open(self) -> GpuState:
        """Return a sequence without rows and blocks."""
        return GpuState(self, self.empty_table())

    def forget(self) -> None:
        """Give all blocks back, because the device with the rows was lost."""
        self._waiting.clear()
        for state in list(self.states):
            state.forget()


class GpuState(BlockState):
    """The cache of one sequence of the target ``gpu``."""

    def __init__(self, arena: GpuArena, table: I32) -> None:
        super().__init__(arena, table)
        self._forgotten = False  # True if rows were lost, until a text begins at its start again
        arena.states.add(self)

    def forget(self) -> None:
        """Give the blocks back, because the device with the rows was lost."""
        self._forgotten = self._forgotten or self.length > 0
        self._keep(0)

    def begin(self, position: int) -> None:
        """Note that a pass begins at a position.

        Raises:
            DeviceError: the rows before it were lost with their device.
        """
        if self._forgotten and position:
            raise DeviceError(
                "device gpu: the rows of this text went with the device that was lost; send the text again, or use "
                "--device cpu"
            )
        self._forgotten = False

    def fork(self) -> Self:
        """Return a sequence that shares the blocks of the committed rows."""
        other = super().fork()
        other._forgotten = self._forgotten
        return other
