"""The worker pool ``local``: processes of this machine, started as they are needed; with one worker, this process.

A process has one item at a time, so the pool knows which item a killed process had.
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
from multiprocessing.connection import wait as wait_for
from typing import Any

from edgedec.workers._calls import CallResult, call
from edgedec.workers._pools import InlinePool, ParallelPool

__all__ = ["create", "usable_cores"]

_GRACE_S = 3.0  # seconds that a process may take to end after it was told to
_INTERRUPTED = 128 + 2  # exit code of a process that Ctrl-C ended


def create(workers: int) -> InlinePool:
    """Return a pool with this number of workers; 0: one for each core."""
    workers = workers or usable_cores()
    return InlinePool() if workers == 1 else ParallelPool(_Processes(workers))


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Worker:
    """A worker process and its pipe.

    Members:
        number: number of the item that the process has; None if it has none.
        function: the function that it received last, pickled.
    """

    def __init__(self) -> None:
        # A forked process would lack the threads of ONNX Runtime and of NumPy, while their locks stayed locked.
        context = get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other,), name="edgedec worker", daemon=True)
        self.number: int | None = None
        self.function = b""
        self.process.start()
        other.close()

    def start(self, number: int, function: bytes, item: bytes) -> None:
        self.number = number
        with suppress(OSError):  # the process has ended; ``result`` reports it
            self.pipe.send_bytes(b"" if function == self.function else function)
            self.pipe.send_bytes(item)
        self.function = function

    def result(self) -> CallResult:
        """Read the result of the call; the pipe must be ready."""
        try:
            done = self.pipe.recv_bytes() == b"done"
            return CallResult(done, self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join(_GRACE_S)
            if self.process.exitcode == _INTERRUPTED:
                raise KeyboardInterrupt from None
            return CallResult(False, b"", lost=_ending(self.process.exitcode))

    def interrupt(self) -> None:
        """Interrupt the process as Ctrl-C does, so that it removes half-written files."""
        if self.process.pid is not None and self.process.is_alive() and sys.platform != "win32":
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGINT)
        self.pipe.close()  # ends a process that waits for an item

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
    """``CallRunner`` of processes."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._all: list[_Worker] = []
        self._function = b""

    def begin(self, function: bytes) -> None:
        self._function = function

    def start(self, number: int, item: bytes) -> None:
        free = [worker for worker in self._all if worker.number is None]
        if not free:
            with _interrupts_held():  # so that a started process is always in the list
                self._all.append(_Worker())
            free = self._all[-1:]
        free[0].start(number, self._function, item)

    def finished(self, wait: bool) -> list[tuple[int, CallResult]]:
        busy: dict[Any, _Worker] = {worker.pipe: worker for worker in self._all if worker.number is not None}
        results = []
        for pipe in wait_for(list(busy), None if wait else 0):
            worker = busy[pipe]
            result = worker.result()
            assert worker.number is not None
            results.append((worker.number, result))
            worker.number = None
            if result.lost:
                self._all.remove(worker)
                self._end([worker])
        return results

    def cancel(self) -> None:
        busy = [worker for worker in self._all if worker.number is not None]
        self._all = [worker for worker in self._all if worker.number is None]
        self._end(busy)

    def close(self) -> None:
        workers, self._all = self._all, []
        self._end(workers)

    def _end(self, workers: list[_Worker]) -> None:
        """End all workers, which share one period of grace. A second Ctrl-C kills them at once."""
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
    """Hold Ctrl-C back. A process that is started meanwhile inherits this until it can handle the signal."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# The functions below run in a worker.


def _work(pipe: Connection) -> None:
    """Handle items until the pipe is closed or Ctrl-C is pressed."""
    try:
        _take_interrupts()
        function = b""
        while True:
            function = pipe.recv_bytes() or function
            result = call(function, pipe.recv_bytes())
            pipe.send_bytes(b"done" if result.done else b"failed")
            pipe.send_bytes(result.data)
    except (EOFError, OSError):  # the parent closed the pipe or has ended
        return
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)


def _take_interrupts() -> None:
    """Take one Ctrl-C. A terminal and ``interrupt`` may both send it; the second must not disturb the clean-up."""

    def once(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    # The parent's handler does not matter: in the background of a shell, SIGINT is ignored.
    signal.signal(signal.SIGINT, once)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
