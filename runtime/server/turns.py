"""Threads in which clients take turns, so that one who asks for much work does not keep the others waiting."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any, ParamSpec, TypeVar

__all__ = ["CLIENT", "FairThreads"]

P = ParamSpec("P")
R = TypeVar("R")
CLIENT: ContextVar[str] = ContextVar(
    "edgedec.client", default=""
)  # name of who sent the request that is being answered
_Work = tuple[Future[Any], Callable[[], Any]]


class FairThreads(Executor):
    """Threads that run one function of a client at a time, and those of several clients in turns.

    Parameters:
        threads: number of threads.
        name: beginning of their names.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[_Work]] = OrderedDict()  # the client whose turn is next comes first
        self._served: set[str] = set()

    def submit(self, function: Callable[P, R], /, *args: P.args, **options: P.kwargs) -> Future[R]:
        """Run a function for the client of the request that is being answered."""
        return self.submit_for(CLIENT.get(), function, *args, **options)

    def submit_for(self, client: str, function: Callable[P, R], /, *args: P.args, **options: P.kwargs) -> Future[R]:
        """Run a function for a client, and return the future of its result.

        Raises:
            RuntimeError: the threads were shut down, or the system starts no further thread.
        """
        future: Future[R] = Future()
        with self._lock:
            self._waiting.setdefault(client, deque()).append((future, partial(function, *args, **options)))
        future.add_done_callback(partial(self._forget_cancelled, client))
        try:
            self._pool.submit(self._run_next)
        except RuntimeError:
            if future.cancel():  # another thread may have begun it meanwhile
                raise
        return future

    def _forget_cancelled(self, client: str, future: Future[Any]) -> None:
        """Take a function that was cancelled out of the queue, with all that it refers to."""
        if not future.cancelled():
            return
        with self._lock:
            queue = self._waiting.get(client, deque())  # the client keeps its turn
            kept = [work for work in queue if work[0] is not future]
            queue.clear()
            queue.extend(kept)
            if not queue:
                self._waiting.pop(client, None)

    def waiting(self, client: str) -> int:
        """Return the number of a client's functions that wait for a turn."""
        with self._lock:
            return len(self._waiting.get(client, ()))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads; see the base class."""
        if cancel_futures:
            with self._lock:
                works = [work for queue in self._waiting.values() for work in queue]
                self._waiting.clear()
            for future, _ in works:
                future.cancel()
        self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _run_next(self) -> None:
        """Run functions, each of the first client who has none running, until every client who waits has one running."""
        while True:
            with self._lock:
                client = next((one for one in self._waiting if one not in self._served), None)
                if client is None:
                    return
                future, function = self._waiting[client].popleft()
                if self._waiting[client]:
                    self._waiting.move_to_end(client)
                else:
                    del self._waiting[client]
                self._served.add(client)
            if future.set_running_or_notify_cancel():
                _settle(future, function)
            del future, function  # they hold the work and its result
            with self._lock:
                self._served.discard(client)


def _settle(future: Future[Any], function: Callable[[], Any]) -> None:
    try:
        result = function()
    except BaseException as error:  # it belongs to who waits for the result
        future.set_exception(error)
    else:
        future.set_result(result)
