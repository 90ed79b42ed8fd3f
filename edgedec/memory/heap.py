"""Return freed memory to the system: glibc's heap while a session is loaded, and pages of arrays that hold nothing."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "freed_blocks_go_back",
    "keep_objects",
    "release_garbage",
    "release_pages",
    "trim_heap",
    "use_one_heap",
    "use_small_pages",
]

_MADV_DONTNEED, _MADV_NOHUGEPAGE = 4, 15  # the values on Linux. Source: madvise(2)

# Parameters of mallopt. Source: mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _HEAPS = -1, -3, -8
# Thresholds for mapped blocks. While loading, glibc's initial value. While running, a value that keeps the activations of a
# wide pass on the heap, so that passes do not map and unmap them; the trim threshold is twice that, as glibc itself sets it.
_LOADING_BYTES, _RUNNING_BYTES = 128 << 10, 2 << 20


@contextlib.contextmanager
def freed_blocks_go_back() -> Iterator[None]:
    """Return freed blocks of 128 KiB and more to the system at once, in the whole process, while the context is active.

    By default glibc raises that limit to the size of the largest block freed so far, up to 32 MiB, and keeps smaller freed
    blocks: 90 MiB after a load of 373 MiB of int8 matrices. On systems without mallopt (macOS, musl) this does nothing.
    """
    mallopt = _mallopt()
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_THRESHOLD, _LOADING_BYTES)
    try:
        yield
    finally:  # passes allocate and free activations; these blocks should stay with the process
        mallopt(_MMAP_THRESHOLD, _RUNNING_BYTES)
        mallopt(_TRIM_THRESHOLD, 2 * _RUNNING_BYTES)


def use_one_heap() -> None:
    """Let all threads that start from now on allocate from one heap of glibc, in the whole process.

    By default each thread has a heap of its own, which keeps pages when the thread has ended. The threads of a session
    seldom allocate at the same time. On systems without mallopt this does nothing.
    """
    mallopt = _mallopt()
    if mallopt is not None:
        mallopt(_HEAPS, 1)


def _mallopt() -> Callable[[int, int], int] | None:
    return getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None


def release_pages(array: NDArray[np.uint8]) -> None:
    """Give the whole pages of a contiguous array in anonymous memory back to the system; their content is then zero.

    Elsewhere than on Linux this does nothing.
    """
    _advise(array, _MADV_DONTNEED)


def use_small_pages(array: NDArray[Any]) -> None:
    """Let the system map each page of a contiguous array by itself from now on. Elsewhere than on Linux this does nothing.

    NumPy asks for huge pages for its larger arrays. Then the first byte that is written to takes 2 MiB, and an array whose
    rows are in many places takes nearly all of its memory with the first row.
    """
    _advise(array, _MADV_NOHUGEPAGE)


def _advise(array: NDArray[Any], advice: int) -> None:
    """Call madvise for the whole pages of an array. A kernel that does not know the advice ignores it."""
    if sys.platform != "linux":
        return
    begin, end = array.ctypes.data, array.ctypes.data + array.nbytes
    first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice)


def keep_objects() -> None:
    """Leave the objects of now, those of modules and of a loaded model, out of Python's searches for unreachable cycles.

    A search of all objects stops every thread, which took 30 to 40 ms in a server, and 10 without these. Python makes one
    when many objects are new, such as those of a large request. The objects are freed as always when nothing refers to
    them; cycles among them are found by ``release_garbage``.
    """
    gc.collect()
    gc.freeze()


def release_garbage() -> None:
    """Free objects that refer to each other alone, and give the free pages of the heap back to the system.

    Objects such as an error and the frames that it passed may hold large ones. Python looks for them after some hundred new
    objects, which an idle process does not make. All objects are looked at from now on, those of ``keep_objects`` included.
    """
    gc.unfreeze()
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Give the free pages of glibc's heap back to the system. On systems without malloc_trim this does nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(ctypes.c_size_t(0))
