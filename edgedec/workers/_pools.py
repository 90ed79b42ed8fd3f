"""The parts that all worker pools share: they send items out in order and return the results in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from edgedec.errors import UsageError
from edgedec.progress import Progress, silent
from edgedec.workers._calls import CallResult, pack, unpack

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CallRunner", "InlinePool", "ParallelPool"]

_AHEAD = 4  # items per worker that may be started ahead of the result that is being waited for


class InlinePool:
    """``edgedec.workers.WorkerPool`` without workers: this process handles one item after the other."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self._state = "idle"

    def map(
        self,
        function: Callable[[Any], Any],
        items: Iterable[Any],
        *,
        progress: Progress = silent,
        label: str = "items",
    ) -> Iterator[Any]:
        self._check_open()
        return self._exclusive(function, items, progress, label)

    def _check_open(self) -> None:
        if self._state == "closed":
            raise UsageError("the pool is closed; call map, and read its results, inside the `with` statement")

    def _exclusive(
        self, function: Callable[[Any], Any], items: Iterable[Any], progress: Progress, label: str
    ) -> Iterator[Any]:
        if self._state != "idle":
            raise UsageError("another map of this pool has not ended; read all its results, or close it, first")
        self._state = "busy"
        try:
            for result in self._results(function, items, progress, label):
                yield result
                self._check_open()
        finally:
            if self._state != "closed":
                self._state = "idle"

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


class CallRunner(Protocol):
    """Run pickled calls in workers.

    Members:
        workers: largest number of calls that run at the same time.
    """

    workers: int

    def begin(self, function: bytes) -> None:
        """Set the function of the next calls, pickled."""

    def start(self, number: int, item: bytes) -> None:
        """Start a call for a pickled item, while fewer than ``workers`` are running. ``number`` identifies it."""

    def finished(self, wait: bool) -> list[tuple[int, CallResult]]:
        """Return the numbers and results of the calls that ended; with ``wait``, wait until there is at least one."""

    def cancel(self) -> None:
        """End all running calls. The runner can be used again."""

    def close(self) -> None:
        """End all workers that the runner started."""


class ParallelPool(InlinePool):
    """``edgedec.workers.WorkerPool`` whose calls run in the workers of a ``CallRunner``."""

    def __init__(self, runner: CallRunner) -> None:
        super().__init__(runner.workers)
        self._runner = runner

    def _results(
        self, function: Callable[[Any], Any], items: Iterable[Any], progress: Progress, label: str
    ) -> Iterator[Any]:
        self._runner.begin(pack(function))
        run = _Map(self._runner, items, progress, label)
        try:
            yield from run.results()
        finally:
            if run.running:
                self._runner.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._runner.close()


class _Map:
    """The state of one call of ``WorkerPool.map``.

    Members:
        running: numbers of the items that workers have.
    """

    def __init__(self, runner: CallRunner, items: Iterable[Any], progress: Progress, label: str) -> None:
        self._runner, self._items = runner, enumerate(items)
        self._progress, self._label, self._total = progress, label, length_hint(items, 0)
        self._started: dict[int, Any] = {}  # items whose results were not yielded yet
        self._finished: dict[int, CallResult] = {}
        self.running: set[int] = set()
        self._ended = False  # no further item is started

    def results(self) -> Iterator[Any]:
        self._fill()
        number = 0
        while self._started:
            while number not in self._finished:
                self._gather(wait=True)
                self._fill()
            yield unpack(self._finished.pop(number), number, self._started.pop(number))
            number += 1
            self._gather(wait=False)  # calls that ended while the caller used this result
            self._fill()

    def _fill(self) -> None:
        """Give an item to each free worker."""
        most = _AHEAD * self._runner.workers
        while not self._ended and len(self.running) < self._runner.workers and len(self._started) < most:
            try:
                number, item = next(self._items)
            except StopIteration:
                self._ended = True
                return
            data = pack(item)
            self._started[number] = item
            self.running.add(number)
            self._runner.start(number, data)

    def _gather(self, *, wait: bool) -> None:
        if not self.running:
            return
        for number, result in self._runner.finished(wait):
            self.running.discard(number)
            self._finished[number] = result
            self._ended |= not result.done
            if self._total:
                done = min(self._started) + len(self._finished)
                self._progress(self._label, done, self._total)
