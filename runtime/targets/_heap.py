"""glibc's heap, while a session makes and frees copies of its weights."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

__all__ = ["freed_blocks_go_back"]

# mallopt's parameters. Source: mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Loading: glibc's own first threshold. Running: activations of a wide pass fit, so that passes do not map and unmap them;
# the heap's end is then kept up to twice that, glibc's own rule.
_LOADING_BYTES, _RUNNING_BYTES = 128 << 10, 2 << 20


@contextlib.contextmanager
def freed_blocks_go_back() -> Iterator[None]:
    """While open, a freed block of 128 KiB and more goes back to the system at once, in the whole process.

    By itself glibc raises that limit to the largest block freed so far, up to 32 MiB, and keeps the holes of smaller ones:
    90 MiB after a load of 373 MiB of int8 matrices. Where there is no mallopt (macOS, musl) this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_THRESHOLD, _LOADING_BYTES)
    try:
        yield
    finally:  # passes allocate and free their activations, which should stay
        mallopt(_MMAP_THRESHOLD, _RUNNING_BYTES)
        mallopt(_TRIM_THRESHOLD, 2 * _RUNNING_BYTES)
