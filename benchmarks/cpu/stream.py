"""Measure how fast this machine reads memory, which is the limit for a pass over the weights."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from benchmarks.support.compile import compile_cached
from edgedec.errors import DeviceError, UsageError

__all__ = ["MemoryStream"]

BUFFER_BYTES = 512 << 20  # size of the buffer, many times the caches of the machines to be measured
_PIECE_BYTES = 8 << 20  # bytes of a piece of ``best_bytes_per_second``
_LANES = 16  # words that the reader reads at a time


class MemoryStream:
    """A buffer of ``nbytes``, and the compiled loop that sums it."""

    def __init__(self, nbytes: int = BUFFER_BYTES) -> None:
        """Compile the loop and fill the buffer.

        Raises:
            ToolError: there is no compiler.
        """
        library = ctypes.CDLL(str(compile_cached(Path(__file__).with_suffix(".cpp"), ("-fPIC", "-shared"))))
        self._read = library.read_seconds
        self._read.restype = ctypes.c_double
        self._read.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int32, ctypes.c_void_p)
        self._words = np.arange(nbytes // 8, dtype=np.uint64)  # unwritten pages would all map to one page of zeros

    def best_bytes_per_second(self, threads: int, repeats: int) -> float:
        """Read the buffer ``repeats`` times in pieces of 8 MiB, and return the rate of the least time of each piece.

        On a quiet machine this is the rate of ``bytes_per_second``. On another one, most pieces are undisturbed once.

        Raises:
            UsageError: a piece cannot be split into that many parts.
        """
        words = min(_PIECE_BYTES // 8, self._words.size)
        if threads < 1 or words % (_LANES * threads):
            raise UsageError(f"a piece of {words} words cannot be read by {threads} threads; choose a power of two")
        total, starts = ctypes.c_uint64(), range(0, self._words.size - words + 1, words)
        best = [float("inf")] * len(starts)
        for _ in range(repeats):
            for number, start in enumerate(starts):
                address = self._words.ctypes.data + 8 * start
                best[number] = min(best[number], self._read(address, words, threads, ctypes.byref(total)))
        return len(starts) * 8 * words / sum(best)

    def bytes_per_second(self, threads: int) -> float:
        """Read the whole buffer once and return the bytes per second.

        Raises:
            UsageError: the buffer cannot be split into that many parts.
            DeviceError: the sum is wrong, so a part was not read.
        """
        count = self._words.size
        if threads < 1 or count % (_LANES * threads):
            raise UsageError(f"a buffer of {count} words cannot be read by {threads} threads; choose a power of two")
        total = ctypes.c_uint64()
        seconds: float = self._read(self._words.ctypes.data, count, threads, ctypes.byref(total))
        if total.value != count * (count - 1) // 2 % 2**64:
            raise DeviceError(f"the read of {self._words.nbytes} bytes gave {total.value}, which is not their sum")
        return self._words.nbytes / seconds
