"""A stopwatch that divides the wall time of some work among named phases, of which one runs at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Stopwatch"]


class Stopwatch:
    """Divide the time since its creation among phases. Every moment belongs to one phase, so that the parts add up.

    Example::

        watch = Stopwatch("writing")
        with watch.phase("reading"):  # "writing" rests meanwhile
            data = file.read()
        watch.seconds()  # {"writing": 0.2, "reading": 1.3}

    Parameters:
        base: name of the phase that time belongs to if no other one is running.
        clock: returns the time in seconds.
    """

    def __init__(self, base: str, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._running, self._since = base, clock()
        self._seconds = {base: 0.0}

    def _switch(self, name: str) -> None:
        now = self._clock()
        self._seconds[self._running] += now - self._since
        self._running, self._since = name, now
        self._seconds.setdefault(name, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Let time belong to the phase ``name`` during the body. Phases may be nested; the outer one rests then."""
        outer = self._running
        self._switch(name)
        try:
            yield
        finally:
            self._switch(outer)

    def move(self, source: str, target: str, seconds: float) -> None:
        """Move time from one phase to another, at most what ``source`` has: it was spent in a process of its own."""
        self._switch(self._running)
        moved = min(max(seconds, 0.0), self._seconds.get(source, 0.0))
        if moved:
            self._seconds[source] -= moved
            self._seconds[target] = self._seconds.get(target, 0.0) + moved

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase so far, in the order in which they first ran."""
        self._switch(self._running)
        return dict(self._seconds)
