"""What all executors share: items out in order, outcomes in as they come, results in order again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from types import TracebackType
from typing import Any, Protocol, Self

from edgedec.errors import UsageError
from edgedec.progress import Progress, silent
from edgedec.workers._calls import Outcome, opened, packed

__all__ = ["InlineExecutor", "Pool", "PooledExecutor"]

_AHEAD = 4  # items per worker that may be begun before the result that is waited for is there


class InlineExecutor:
    """``edgedec.workers.Executor`` without any worker: in this process, one item after the other."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self._state = "ready"

    def map(
        self,
        function: Callable[[Any], Any],
        items: Iterable[Any],
        *,
        progress: Progress = silent,
        label: str = "items",
    ) -> Iterator[Any]:
        self._check_open()
        return self._alone(function, items, progress, label)

    def _check_open(self) -> None:
        if self._state == "closed":
            raise UsageError("the executor is closed; map, and read the results, inside of its `with` statement")

    def _alone(
        self, function: Callable[[Any], Any], items: Iterable[Any], progress: Progress, label: str
    ) -> Iterator[Any]:
        if self._state != "ready":
            raise UsageError("another map of this executor goes on; read its results to their end, or close it, first")
        self._state = "busy"
        try:
            for result in self._results(function, items, progress, label):
                yield result
                self._check_open()
        finally:
            if self._state != "closed":
                self._state = "ready"

    def _results(
        self, function: Callable[[Any], Any], items: Iterable[Any], progress: Progress, label: str
    ) -> Iterator[Any]:
        total = length_hint(items, 0)
        for number, item in enumerate(items):
            result = function(item)
            if total:
                progress(label, number + 1, total)
            yield result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = "closed"


class Pool(Protocol):
    """Runs calls elsewhere.

    Members:
        workers: calls at the same time at most.
    """

    workers: int

    def begin(self, function: bytes) -> None:
        """What the next calls are of, pickled."""

    def start(self, number: int, item: bytes) -> None:
        """A call; fewer than ``workers`` are running."""

    def finished(self, wait: bool) -> list[tuple[int, Outcome]]:
        """Numbers and outcomes of calls that ended; ``wait``: for one, if there is none."""

    def cancel(self) -> None:
        """End all that run; the pool can be used again."""

    def close(self) -> None:
        """End whatever it started."""


class PooledExecutor(InlineExecutor):
    """``edgedec.workers.Executor`` over a pool."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool.workers)
        self._pool = pool

    def _results(
        self, function: Callable[[Any], Any], items: Iterable[Any], progress: Progress, label: str
    ) -> Iterator[Any]:
        self._pool.begin(packed(function))
        run = _Run(self._pool, items, progress, label)
        try:
            yield from run.results()
        finally:
            if run.running:
                self._pool.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._pool.close()


class _Run:
    """One map.

    Members:
        running: numbers of the items that workers have.
    """

    def __init__(self, pool: Pool, items: Iterable[Any], progress: Progress, label: str) -> None:
        self._pool, self._items = pool, enumerate(items)
        self._progress, self._label, self._total = progress, label, length_hint(items, 0)
        self._begun: dict[int, Any] = {}  # items whose results are not given out
        self._outcomes: dict[int, Outcome] = {}
        self.running: set[int] = set()
        self._ended = False  # nothing else is begun

    def results(self) -> Iterator[Any]:
        self._fill()
        number = 0
        while self._begun:
            while number not in self._outcomes:
                self._gather(wait=True)
                self._fill()
            yield opened(self._outcomes.pop(number), number, self._begun.pop(number))
            number += 1
            self._gather(wait=False)  # whose results came while the caller had this one
            self._fill()

    def _fill(self) -> None:
        """Each free worker gets an item."""
        most = _AHEAD * self._pool.workers
        while not self._ended and len(self.running) < self._pool.workers and len(self._begun) < most:
            try:
                number, item = next(self._items)
            except StopIteration:
                self._ended = True
                return
            data = packed(item)
            self._begun[number] = item
            self.running.add(number)
            self._pool.start(number, data)

    def _gather(self, *, wait: bool) -> None:
        if not self.running:
            return
        for number, outcome in self._pool.finished(wait):
            self.running.discard(number)
            self._outcomes[number] = outcome
            self._ended |= not outcome.done
            if self._total:
                done = min(self._begun) + len(self._outcomes)
                self._progress(self._label, done, self._total)
