"""Processes of this machine, begun as they are needed; with one worker this process itself.

A process has one item at a time, so it is known which one a killed process had.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as ready
from typing import Any

from edgedec.workers._calls import Outcome, call
from edgedec.workers._pooled import InlineExecutor, PooledExecutor

__all__ = ["create"]

_GRACE_S = 3.0  # for a process to end by itself once it is told to
_INTERRUPTED = 128 + 2  # exit code of a process that Ctrl-C ended


def create(workers: int) -> InlineExecutor:
    """An executor; 0 workers: one for each core."""
    workers = workers or _cores()
    return InlineExecutor() if workers == 1 else PooledExecutor(_Processes(workers))


def _cores() -> int:
    """Those that this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Worker:
    """A process and its pipe.

    Members:
        number: of the item that it has; None if it has none.
        function: that it was given last.
    """

    def __init__(self) -> None:
        # Not a fork: threads of ONNX Runtime and of NumPy would not live on in it, and their locks would stay shut.
        context = get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other,), name="edgedec worker", daemon=True)
        self.number: int | None = None
        self.function = b""
        self.process.start()
        other.close()

    def start(self, number: int, function: bytes, item: bytes) -> None:
        self.number = number
        with suppress(OSError):  # it is gone: ``outcome`` says so
            self.pipe.send_bytes(b"" if function == self.function else function)
            self.pipe.send_bytes(item)
        self.function = function

    def outcome(self) -> Outcome:
        """Once the pipe is ready."""
        try:
            done = self.pipe.recv_bytes() == b"done"
            return Outcome(done, self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join(_GRACE_S)
            if self.process.exitcode == _INTERRUPTED:
                raise KeyboardInterrupt from None
            return Outcome(False, b"", lost=_ending(self.process.exitcode))

    def interrupt(self) -> None:
        """As Ctrl-C does, so that half-written files are cleared away."""
        if self.process.pid is not None and self.process.is_alive() and sys.platform != "win32":
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGINT)
        self.pipe.close()  # one that waits for an item ends by that

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()


def _ending(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its pipe"
    if exitcode >= 0:
        return f"ended with code {exitcode}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"was killed by signal {-exitcode}"


class _Processes:
    """``Pool`` of processes."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._all: list[_Worker] = []
        self._function = b""

    def begin(self, function: bytes) -> None:
        self._function = function

    def start(self, number: int, item: bytes) -> None:
        free = [worker for worker in self._all if worker.number is None]
        if not free:
            with _interrupts_held():  # one that is being started is known, or not there
                self._all.append(_Worker())
            free = self._all[-1:]
        free[0].start(number, self._function, item)

    def finished(self, wait: bool) -> list[tuple[int, Outcome]]:
        busy: dict[Any, _Worker] = {worker.pipe: worker for worker in self._all if worker.number is not None}
        found = []
        for pipe in ready(list(busy), None if wait else 0):
            worker = busy[pipe]
            outcome = worker.outcome()
            assert worker.number is not None
            found.append((worker.number, outcome))
            worker.number = None
            if outcome.lost:
                self._all.remove(worker)
                self._end([worker])
        return found

    def cancel(self) -> None:
        busy = [worker for worker in self._all if worker.number is not None]
        self._all = [worker for worker in self._all if worker.number is None]
        self._end(busy)

    def close(self) -> None:
        workers, self._all = self._all, []
        self._end(workers)

    def _end(self, workers: list[_Worker]) -> None:
        """All at once: they share the grace. A second Ctrl-C ends that."""
        try:
            for worker in workers:
                worker.interrupt()
            until = time.monotonic() + _GRACE_S
            for worker in workers:
                worker.process.join(max(0.0, until - time.monotonic()))
        finally:
            for worker in workers:
                worker.kill()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits, and for a process that is started in it until that can answer."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In a worker.


def _work(pipe: Connection) -> None:
    """Items until the pipe is closed, or Ctrl-C."""
    try:
        _take_interrupts()
        function = b""
        while True:
            function = pipe.recv_bytes() or function
            outcome = call(function, pipe.recv_bytes())
            pipe.send_bytes(b"done" if outcome.done else b"failed")
            pipe.send_bytes(outcome.data)
    except (EOFError, OSError):  # whoever asked has gone
        return
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)


def _take_interrupts() -> None:
    """One of them: the second, of a terminal and of ``interrupt``, must not disturb what the first one has begun."""

    def once(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    # Whatever the parent has: in the background of a shell it is ignored.
    signal.signal(signal.SIGINT, once)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
