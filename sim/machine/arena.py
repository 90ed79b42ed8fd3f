"""Allocate buffers from one block of memory, first fit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError, UsageError
from edgedec.runtime.driver.first_fit import FirstFit

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
        self._parts = FirstFit(address, memory.size)

    def allocate(self, size_bytes: int, alignment_bytes: int) -> ArenaBuffer:
        """Return a buffer in the first gap that is large enough.

        Raises:
            DeviceError: no gap is large enough.
            UsageError: the size is below 1, or the alignment is not a power of two.
        """
        if size_bytes < 1 or alignment_bytes < 1 or alignment_bytes & (alignment_bytes - 1):
            raise UsageError(f"no buffer to allocate: {size_bytes} bytes at a multiple of {alignment_bytes}")
        at = self._parts.take(size_bytes, alignment_bytes)
        if at is None:
            raise DeviceError(
                f"a buffer of {size_bytes} bytes does not fit the device's memory: {sum(self._parts.gaps)} of "
                f"{self._memory.size} bytes are free; give it more memory_bytes, or use a smaller context"
            )
        array = self._memory[at - self._address :][:size_bytes]
        return ArenaBuffer(array, at, lambda: self._parts.release(at))
