"""Allocate buffers from one block of memory, first fit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError, UsageError

__all__ = ["Arena", "ArenaBuffer"]

U8 = NDArray[np.uint8]


class ArenaBuffer:
    """A buffer of edgedec.device in coherent memory."""

    def __init__(self, array: U8, address: int, release: Callable[[], None]) -> None:
        self.array, self.address, self._release = array, address, release

    def flush(self) -> None:
        """Do nothing, because the memory is coherent."""

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None:
        """Do nothing, because the memory is coherent."""

    def close(self) -> None:
        """Free the buffer. Its bytes may become part of another buffer."""
        release, self._release = self._release, lambda: None
        release()


class Arena:
    """Allocate buffers from ``memory``, whose first byte is at ``address``."""

    def __init__(self, memory: U8, address: int) -> None:
        self._memory, self._address = memory, address
        self._taken: dict[int, int] = {}  # first byte -> size

    def allocate(self, size_bytes: int, alignment_bytes: int) -> ArenaBuffer:
        """Return a buffer in the first gap that is large enough.

        Raises:
            DeviceError: no gap is large enough.
            UsageError: the size is below 1, or the alignment is not a power of two.
        """
        if size_bytes < 1 or alignment_bytes < 1 or alignment_bytes & (alignment_bytes - 1):
            raise UsageError(f"no buffer to allocate: {size_bytes} bytes at a multiple of {alignment_bytes}")
        at = 0
        for start, size in [*sorted(self._taken.items()), (self._memory.size, 0)]:
            at += -(self._address + at) % alignment_bytes
            if at + size_bytes <= start:
                break
            at = max(at, start + size)
        else:
            free = self._memory.size - sum(self._taken.values())
            raise DeviceError(
                f"a buffer of {size_bytes} bytes does not fit the device's memory: {free} of {self._memory.size} bytes are "
                "free; give it more memory_bytes, or use a smaller context"
            )
        self._taken[at] = size_bytes
        array = self._memory[at : at + size_bytes]
        return ArenaBuffer(array, self._address + at, lambda: self._release(at))

    def _release(self, at: int) -> None:
        del self._taken[at]
