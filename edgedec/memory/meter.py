"""Measure the charged bytes of this process.

Charged bytes are the growth of anonymous and shared memory since the meter was started, plus the resident pages of mappings
of the model's files. Transient memory of loading counts. The baseline (memory of the imports) and the code of libraries are
reported separately. The heap is trimmed before the baseline is read: otherwise pages that imports have freed belong to it,
the model takes them first, and is charged that much too little (5 to 7 MiB were measured). The peak of a run is the largest
value that its meter read, every few milliseconds and between phases.
"""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from edgedec.memory.heap import trim_heap

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MemoryMeter", "mapped_bytes", "resident_bytes"]

_PAGE = os.sysconf("SC_PAGE_SIZE")


def _anonymous_bytes() -> int:
    """Return the anonymous and shared memory of this process in bytes, from ``smaps_rollup``."""
    text = Path("/proc/self/smaps_rollup").read_bytes()
    total = 0
    for key in (b"Anonymous", b"Pss_Shmem"):
        match = re.search(rb"^" + key + rb": +(\d+) kB", text, re.MULTILINE)
        total += int(match[1]) * 1024 if match else 0
    return total


def _lasting_bytes() -> int:
    """Return the anonymous memory of this process without what the heap has free, which is given back to the system."""
    trim_heap()
    return _anonymous_bytes()


def resident_bytes() -> int:
    """Return the resident bytes of this process, including shared code of libraries; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE
    except OSError:
        return 0


def _file_prefixes(folders: tuple[Path, ...]) -> tuple[bytes, ...]:
    """Return what the paths of all files under ``folders`` begin with, as ``/proc/self/maps`` shows them."""
    return tuple(os.fsencode(folder.resolve()) + b"/" for folder in folders)


def mapped_bytes(folders: tuple[Path, ...]) -> int:
    """Return the resident bytes of this process's mappings of files under one of ``folders``. This needs Linux."""
    return _mapped_bytes(_file_prefixes(folders))


def _mapped_bytes(prefixes: tuple[bytes, ...]) -> int:
    """Return the resident bytes of mappings whose file begins with one of ``prefixes``.

    ``maps`` lists the ranges, and ``pagemap`` tells which pages are present. This is much faster than ``smaps``, which
    visits every page of the process.
    """
    total = 0
    with Path("/proc/self/maps").open("rb") as maps, Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) < 6 or not fields[5].startswith(prefixes):
                continue
            start, stop = (int(part, 16) // _PAGE for part in fields[0].split(b"-"))
            pagemap.seek(start * 8)
            data = pagemap.read((stop - start) * 8)
            total += int(np.count_nonzero(np.frombuffer(data, "<u8") >> np.uint64(63)))  # bit 63: the page is present
    return total * _PAGE


class _Watched:
    """A context that threads enter while they work. It tells how long none was in it, and waits for the next one."""

    def __init__(self) -> None:
        self._entered = threading.Condition()
        self._inside = 0  # threads, each as often as it has entered
        self._left = time.monotonic()  # time of the last end of a block

    def __enter__(self) -> None:
        with self._entered:
            self._inside += 1
            if self._inside == 1:
                self._entered.notify_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._entered:
            self._inside -= 1
            self._left = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last block; 0 within one."""
        return 0.0 if self._inside else time.monotonic() - self._left

    def wait(self, stop: threading.Event) -> None:
        """Wait until a thread is within a block, or ``stop`` is set and ``wake`` was called."""
        with self._entered:
            self._entered.wait_for(lambda: self._inside or stop.is_set())

    def wake(self) -> None:
        """Let a thread in ``wait`` look at its event."""
        with self._entered:
            self._entered.notify_all()


class MemoryMeter:
    """Measure the charged bytes of this process in a thread, until the meter is closed.

    ``statm`` is read every 5 ms, which takes 20 microseconds. If it has changed by more than 64 KiB, and at every ``mark``,
    the exact figure is computed. That visits every resident page, 10 ms for some hundred megabytes, so the thread then rests
    four times as long: while a large model is loaded, it would otherwise take most of a core from the loading. After
    ``rest`` the thread sleeps outside of the blocks of ``watched``, so that a process that waits for work costs nothing. It
    reads on for ``LINGER_S`` after each block, so that short blocks do not wake it again and again. This needs Linux;
    elsewhere every figure is 0, and ``available`` is False.

    Parameters:
        folders: the model's folders; mapped files in them are charged.

    Members:
        watched: a context for work that takes memory. Several threads may be within it, and it may be nested.
        baseline_bytes: memory of the process that is not charged.
        left_out_bytes: the part of it that ``leave_out`` has added.
        peak_bytes, measured_bytes: the largest figure so far, and the last one.
        high_bytes: figure above which what the heap has free is given back to the system, and then unreachable objects are
            looked for, at most once a second; 0: never.
    """

    INTERVAL_S = 0.005
    LINGER_S = 0.1  # seconds for which the thread reads on after a block
    _STEP_PAGES = (64 << 10) // _PAGE
    _REST = 4  # rest after a measurement, as a multiple of its CPU time
    _RELIEF_S = 1.0  # least seconds from one relief to the next

    def __init__(self, folders: tuple[Path, ...] = ()) -> None:
        self.available = Path("/proc/self/smaps_rollup").exists() and Path("/proc/self/pagemap").exists()
        self._prefixes = _file_prefixes(folders)
        self.baseline_bytes = _lasting_bytes() if self.available else 0
        self.left_out_bytes = 0
        self.peak_bytes = self.measured_bytes = self.high_bytes = 0
        self._relieved = float("-inf")  # time of the last relief, in seconds of ``time.monotonic``
        self.watched = _Watched()
        self._rests = False
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="edgedec-memory", daemon=True)

    def start(self) -> None:
        if self.available:
            self._thread.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def rest(self) -> None:
        """Measure within the blocks of ``watched`` alone from now on."""
        self._rests = True

    def close(self) -> None:
        if self._thread.is_alive():
            self.mark()
            self._stop.set()
            self.watched.wake()
            self._thread.join()

    def charged_bytes(self) -> int:
        """Return the present charged bytes."""
        if not self.available:
            return 0
        return max(0, _anonymous_bytes() - self.baseline_bytes) + (
            _mapped_bytes(self._prefixes) if self._prefixes else 0
        )

    def mark(self) -> int:
        """Measure the charged bytes at the end of a phase, and return them."""
        with self._lock:
            self.measured_bytes = now = self.charged_bytes()
            self.peak_bytes = max(self.peak_bytes, now)
            if 0 < self.high_bytes < now and time.monotonic() >= self._relieved + self._RELIEF_S:
                self.measured_bytes = now = self._relieve()
        return now

    def _relieve(self) -> int:
        """Give free memory back to the system until the figure is low, and return it."""
        trim_heap()
        if (now := self.charged_bytes()) > self.high_bytes:
            gc.collect()
            trim_heap()
            now = self.charged_bytes()
        self._relieved = time.monotonic()
        return now

    def leave_out(self, load: Callable[[], object]) -> int:
        """Call ``load``. What it leaves in the memory of the process belongs to the baseline, and is not charged.

        Returns:
            These bytes.
        """
        with self._lock:
            before = _lasting_bytes() if self.available else 0
            load()
            added = max(0, _lasting_bytes() - before) if self.available else 0
            self.baseline_bytes += added
            self.left_out_bytes += added
        return added

    def _watch(self) -> None:
        seen, rest_s = 0, self.INTERVAL_S
        while not self._stop.wait(rest_s):
            rest_s = self.INTERVAL_S
            if self._rests and self.watched.idle_s > self.LINGER_S:
                self.watched.wait(self._stop)
            resident = int(Path("/proc/self/statm").read_bytes().split()[1])
            if abs(resident - seen) > self._STEP_PAGES:
                seen, began = resident, time.thread_time()
                self.mark()
                rest_s = max(rest_s, self._REST * (time.thread_time() - began))
