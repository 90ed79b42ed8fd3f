"""Run NumPy's matrix products on one thread for a while, because threads of small products wait more than they work."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

__all__ = ["one_thread"]

_LIBRARY = re.compile(r"\S*openblas\S*\.so\S*$", re.MULTILINE)
_NAMES = [f"{prefix}openblas_%s_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")]

Control = tuple[Callable[[], int], Callable[[int], object]]  # returns and sets the number of threads of one library


@cache
def _controls() -> tuple[Control, ...]:
    """Return the controls of the OpenBLAS libraries in this process; none without ``/proc``, or with another BLAS."""
    try:
        paths = sorted(set(_LIBRARY.findall(Path("/proc/self/maps").read_text("utf-8", "replace"))))
    except OSError:
        return ()
    return tuple(control for path in paths if (control := _control(path)) is not None)


def _control(path: str) -> Control | None:
    try:
        library = ctypes.CDLL(path)
    except OSError:  # the file was replaced after it was loaded
        return None
    for name in _NAMES:
        if hasattr(library, name % "get") and hasattr(library, name % "set"):
            return getattr(library, name % "get"), getattr(library, name % "set")
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """Let matrix products of this process use one thread during the body.

    Products of some thousand elements take several times as long on two threads as on one if other programs use the cores. A
    BLAS that cannot be told is left as it is; the results are the same up to rounding.
    """
    controls = _controls()
    before = [get() for get, _ in controls]
    for _, set_threads in controls:
        set_threads(1)
    try:
        yield
    finally:
        for (_, set_threads), threads in zip(controls, before, strict=True):
            set_threads(threads)
