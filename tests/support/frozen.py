"""Keep the tests themselves out of searches of Python's garbage collector, and of the kernel's counts of pages.

pytest collects 22,000 tests, which take 300 MiB. A search through all of them takes a fifth of a second, and a count of
their pages by ``smaps_rollup``, which a memory meter reads some times for each session, 8 ms.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

unfreeze = gc.unfreeze  # for the tests of what is frozen, which freeze again

_HUGE_BYTES = 2 << 20  # a huge page of x86-64, and of AArch64 with pages of 4 KiB
_MADV_COLLAPSE = 25  # Source: madvise(2); Linux 6.1 is the first that knows it


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Search for nothing while the tests are collected, which are no garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Freeze the tests for good, and let huge pages hold them.

    A server that unloads its model unfreezes all objects, to look at those that it froze when it began. Those that a test
    makes are not frozen while it runs.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.unfreeze = lambda: None
    if sys.platform == "linux":
        use_huge_pages()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Freeze what a file leaves behind, such as the modules that it has imported."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def use_huge_pages() -> None:
    """Put the heap of this process into huge pages, where the kernel can: it counts one as fast as a small one.

    What is resident stays as it is, but for a few holes, and pages that are given back leave their huge page.
    """
    madvise = ctypes.CDLL(None).madvise
    for begin, end in _heap():
        for address in range(-(-begin // _HUGE_BYTES) * _HUGE_BYTES, end - _HUGE_BYTES + 1, _HUGE_BYTES):
            madvise(ctypes.c_void_p(address), ctypes.c_size_t(_HUGE_BYTES), _MADV_COLLAPSE)


def _heap() -> Iterator[tuple[int, int]]:
    """Yield the addresses of the writable private mappings that are no file's."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, *_, last = line.split()
        if access.startswith("rw-p") and (last == "0" or last == "[heap]"):
            begin, _, end = addresses.partition("-")
            yield int(begin, 16), int(end, 16)
