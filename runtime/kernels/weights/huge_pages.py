"""Weights in huge pages, where the system gives them without reservation (transparent huge pages of Linux).

A pass reads every weight once, and with pages of 4 KiB the processor's look-up of pages is then the limit: in a virtual
machine a product reads a mapped file at about 0.6 times the speed of the same bytes in pages of 2 MiB. The usual file
systems have no huge pages, so the weights are read into anonymous memory. This takes no more memory than a mapping whose
pages are all in use, because the system can drop its cache of the file at any time; but processes cannot share it.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.environment import HUGE_PAGES
from edgedec.memory.cgroups import cgroup_limits

__all__ = ["LEAST_BYTES", "FileReader", "anonymous", "file_bytes", "huge_page_bytes"]

LEAST_BYTES = 16 << 20  # smaller parts of files are mapped: they are little more than what the processor's tables reach
_FOLDER = Path("sys/kernel/mm/transparent_hugepage")
_PIECE_BYTES = 8 << 20  # bytes of one system call
_LOG = logging.getLogger(__name__)


def huge_page_bytes(root: Path = Path("/")) -> int:
    """Return the size of a huge page that this system gives on request, or 0 if it gives none.

    Args:
        root: folder that holds ``sys``, for tests.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return 0
    try:
        choice = (root / _FOLDER / "enabled").read_text()
        size = int((root / _FOLDER / "hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0
    return size if re.search(r"\[(always|madvise)\]", choice) else 0


def _free_bytes() -> int:
    """Return the memory that this process may still take, by the system and by the limits of its control groups."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return 0
    match = re.search(r"^MemAvailable: +(\d+) kB", text, re.MULTILINE)
    left = int(match[1]) << 10 if match else 0
    return min([left, *(limit.limit_bytes - limit.used_bytes for limit in cgroup_limits())])


def _wanted_page(nbytes: int) -> int:
    """Return the size of huge pages for ``nbytes`` of weights, or 0 if they shall be in usual ones.

    Raises:
        UsageError: ``EDGEDEC_HUGE_PAGES`` is neither 0 nor 1.
    """
    allowed = HUGE_PAGES.value() is None or HUGE_PAGES.is_on()
    return huge_page_bytes() if allowed and nbytes >= LEAST_BYTES else 0


def anonymous(nbytes: int) -> NDArray[np.uint8]:
    """Return uint8 [nbytes], zeros, in huge pages as far as whole ones fit and the system has them.

    It begins at a page, or at a huge page if there are any.

    Raises:
        UsageError: ``EDGEDEC_HUGE_PAGES`` is neither 0 nor 1.
    """
    page = _wanted_page(nbytes)
    region = mmap.mmap(-1, nbytes + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(region, np.uint8)
    start = -whole.ctypes.data % page if page else 0  # the pages before it are never touched and take no memory
    if page:
        region.madvise(mmap.MADV_HUGEPAGE, start, nbytes // page * page)
    return whole[start : start + nbytes]


class FileReader:
    """Reads parts of files into huge pages in the background, so that a model's graph is prepared in the meantime.

    The arrays of ``begin`` have their values after ``finish``.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._errors: list[Exception] = []
        self._lock = threading.Lock()
        self._unread = 0  # bytes that were begun and do not take memory yet

    def begin(self, path: Path, offset: int = 0, nbytes: int | None = None) -> NDArray[np.uint8]:
        """Return a part of a file as uint8 [nbytes], to be read only: in huge pages if that is possible, else mapped.

        It is mapped if the system gives no huge pages, if ``EDGEDEC_HUGE_PAGES`` is 0, if the part is small, or if it is
        more than half of the memory that is free.

        Args:
            nbytes: the size of the part; None means all from ``offset`` on.

        Raises:
            OSError: the file cannot be opened, or is too short.
            UsageError: ``EDGEDEC_HUGE_PAGES`` is neither 0 nor 1.
        """
        size = path.stat().st_size - offset
        nbytes = size if nbytes is None else nbytes
        if nbytes > size:
            raise OSError(f"{path}: has {size} bytes from {offset} on, and {nbytes} are needed")
        if not _wanted_page(nbytes) or 2 * nbytes > _free_bytes() - self._unread:
            return np.asarray(np.memmap(path, np.uint8, mode="r", offset=offset, shape=(nbytes,)))
        array = anonymous(nbytes)
        thread = threading.Thread(target=self._read, args=(path, offset, array.data), name="edgedec-weights")
        array.flags.writeable = False
        with self._lock:
            self._unread += nbytes
        self._threads.append(thread)
        thread.start()
        return array

    def finish(self) -> None:
        """Wait until all parts are read.

        Raises:
            OSError: a file could not be read, or ended too early.
        """
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._errors:
            raise self._errors[0]

    def _read(self, path: Path, offset: int, view: memoryview) -> None:
        try:
            done = 0
            with path.open("rb", buffering=0) as file:
                while done < len(view):
                    count = os.preadv(file.fileno(), [view[done : done + _PIECE_BYTES]], offset + done)
                    if not count:
                        raise OSError(f"{path}: ended after {offset + done} bytes while it was read")
                    done += count
                    with self._lock:
                        self._unread -= count
        except Exception as error:
            self._errors.append(error)
        else:
            _LOG.info("%s: %d bytes of weights read into huge pages", path, len(view))


def file_bytes(path: Path, offset: int = 0, nbytes: int | None = None) -> NDArray[np.uint8]:
    """Return a part of a file as ``FileReader.begin`` does, with its values.

    Raises:
        OSError, UsageError: ``FileReader`` raised it.
    """
    reader = FileReader()
    array = reader.begin(path, offset, nbytes)
    reader.finish()
    return array
