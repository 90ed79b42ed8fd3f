"""Progress reports of long work, and lines that show them if no progress bar can be drawn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["LINE_INTERVAL_S", "Progress", "ProgressLines", "silent"]

LINE_INTERVAL_S = 10.0  # seconds between two lines about the same work

Progress = Callable[
    [str, int, int], None
]  # called with (name of the work, done, total); the unit is the caller's choice


def silent(what: str, done: int, total: int) -> None:
    """Ignore a report."""


class ProgressLines:
    """Write a line about running work at every interval. Use as a context manager; ``update`` is a ``Progress``.

    Work that ends within the first interval writes nothing. A thread writes the lines, so that they also appear during work
    that reports nothing for minutes, such as a compiler's run.

    Parameters:
        label: name of the work.
        write: called with each line, without a newline. No more lines are written after it raises OSError or ValueError,
            because the stream has no reader then.
        once: stop as soon as everything is done, because the caller writes to the same stream next.
        interval_s: seconds between two lines.
        clock: returns the time in seconds.
        wait: waits for a number of seconds, or until ``stop``; returns True after ``stop``. None: real time.
    """

    def __init__(
        self,
        label: str,
        write: Callable[[str], None],
        *,
        once: bool = False,
        interval_s: float = LINE_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._label, self._write, self._once = label, write, once
        self._interval_s, self._clock = interval_s, clock
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._state = ("", 0, 0)  # last report; replaced as a whole, because the thread reads it
        self._began = 0.0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._began = self._clock()
        self._thread = threading.Thread(target=self._run, name="edgedec-progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def update(self, what: str, done: int, total: int) -> None:
        """Store a report for the next line."""
        self._state = (what, done, total)
        if self._once and done >= total:
            self.stop()

    def stop(self) -> None:
        """Stop writing lines. After this call, no line is being written."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def line(self) -> str:
        """Return the line for the present state: ``quantizing: 12 %, layers.3.up_proj (30 s)``."""
        what, done, total = self._state
        share = f"{100 * done // total} %" if total > 1 else ""  # work of one piece has no share until it is done
        detail = ", ".join(part for part in (share, what) if part)
        seconds = f"({self._clock() - self._began:.0f} s)"
        return f"{self._label}: {detail} {seconds}" if detail else f"{self._label} {seconds}"

    def _run(self) -> None:
        due = self._began + self._interval_s
        while not self._wait(max(0.0, due - self._clock())):
            if self._stopped.is_set():
                return
            if self._clock() < due:  # a wait may end early
                continue
            try:
                self._write(self.line())
            except (OSError, ValueError):
                return
            due += self._interval_s * (1 + (self._clock() - due) // self._interval_s)
