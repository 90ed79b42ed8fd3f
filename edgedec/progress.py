"""Progress reports of long work, and lines that show them if no progress bar can be drawn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LINE_INTERVAL_S", "Progress", "ProgressLines", "remaining", "silent", "within"]

LINE_INTERVAL_S = 10.0  # seconds between two lines about the same work
_KNOWN = 0.03  # share of the work after which the rest can be estimated
_MINUTES_S = 100.0  # seconds that are not yet called minutes; and minutes, hours

Progress = Callable[
    [str, int, int], None
]  # called with (name of the work, done, total); the unit is the caller's choice


def silent(what: str, done: int, total: int) -> None:
    """Ignore a report."""


def within(progress: Progress, first: int, last: int, total: int = 100) -> Progress:
    """Return a ``Progress`` for a part of some work, which reports to that of the whole.

    Args:
        first, last: pieces of the whole, of ``total``, that are done at the beginning and at the end of the part.

    Example: if the part reports 1 of 2, ``within(progress, 60, 100)`` reports 80 of 100.
    """

    def report(what: str, done: int, all_of_it: int) -> None:
        progress(what, first + (last - first) * done // max(1, all_of_it), total)

    return report


def remaining(elapsed_s: float, done: int, total: int) -> str:
    """Return an estimate of the time that work still takes: "about 40 s" or "about 5 minutes"; empty if there is none.

    It assumes that the rest takes as long as what is done, in proportion, which is unknown before ``_KNOWN`` of the work.
    """
    if total <= 1 or not _KNOWN * total <= done < total:
        return ""
    left = elapsed_s * (total - done) / done
    if left < _MINUTES_S:
        return f"about {max(1, round(left))} s"
    return f"about {round(left / 60)} minutes" if left < 60 * _MINUTES_S else f"about {left / 3600:.1f} hours"


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
        """Return the line for the present state: ``quantizing: 12 %, layers.3.up_proj (30 s, about 4 minutes left)``."""
        what, done, total = self._state
        elapsed = self._clock() - self._began
        share = f"{100 * done // total} %" if total > 1 else ""  # work of one piece has no share until it is done
        detail = ", ".join(part for part in (share, what) if part)
        left = remaining(elapsed, done, total)
        seconds = f"({elapsed:.0f} s{f', {left} left' if left else ''})"
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
