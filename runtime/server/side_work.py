"""The work on requests beside the model's thread: texts that are converted, and grammars that are made.

Both take memory, of which the request has its share while a function runs (``request_memory.py``), and clients take turns
for the threads (``turns.py``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import ParamSpec, TypeVar

from edgedec.memory.heap import trim_heap
from edgedec.runtime.grammar.cache import GrammarCache
from edgedec.runtime.server.errors import late_grammar, too_many_grammars
from edgedec.runtime.server.memory import GRAMMAR_CACHE_BYTES
from edgedec.runtime.server.request_memory import REQUEST_MEMORY
from edgedec.runtime.server.texts import GRAMMAR_S, MUCH_BYTES
from edgedec.runtime.server.turns import CLIENT, FairThreads

__all__ = ["SideWork"]

_TEXT_THREADS = 2
_GRAMMAR_THREADS = max(1, (os.cpu_count() or 1) // 4)  # the model has the others
_GRAMMARS_WAITING = 64  # grammars of one client that wait to be made
P = ParamSpec("P")
R = TypeVar("R")


class SideWork:
    """Runs functions in threads, for the client of the request that is being answered.

    Members:
        grammars: the grammars that requests asked for last.
        grammar_threads: the threads in which grammars are made and compiled.
        watched: the memory is measured within it, while a model is loaded.
    """

    def __init__(self) -> None:
        self.grammars = GrammarCache(GRAMMAR_CACHE_BYTES)
        self.grammar_threads = FairThreads(_GRAMMAR_THREADS, "edgedec-grammar")
        self.watched: AbstractContextManager[None] = nullcontext()
        self._text_threads = FairThreads(_TEXT_THREADS, "edgedec-text")

    def close(self) -> None:
        """Forget the functions that wait, and end the threads after those that run."""
        for threads in (self._text_threads, self.grammar_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, function: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        """Return what ``function`` returns in a thread: work on texts, which may take a while and much memory.

        Only ``_TEXT_THREADS`` such calls run at a time, one of each client, so that their memory is bounded however many
        requests there are, and no client keeps the others waiting.
        """
        return await asyncio.wrap_future(self._begin_work(function, *args, **options))

    def _begin_work(self, function: Callable[P, R], *args: P.args, **options: P.kwargs) -> Future[R]:
        memory = REQUEST_MEMORY.get()
        takes_much = memory is not None and memory.nbytes >= MUCH_BYTES

        def work() -> R:
            with self.watched:
                try:
                    return function(*args, **options)
                finally:
                    if takes_much:
                        trim_heap()

        future = self._text_threads.submit(work)
        if memory is not None:
            memory.outlasts(future)
        return future

    async def convert(self, nbytes: int, function: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        """Return what ``function`` returns in a thread, which takes ``nbytes`` of memory meanwhile.

        Raises:
            ApiError: there is no room for them now (status 429), or never (413).
        """
        memory = REQUEST_MEMORY.get()
        with ExitStack() if memory is None else await memory.converting(nbytes) as converted:
            future = self._begin_work(function, *args, **options)
            held = converted.pop_all()
            future.add_done_callback(lambda _: held.close())  # the thread goes on when the client has left
        return await asyncio.wrap_future(future)

    async def make_grammar(self, function: Callable[[GrammarCache], R]) -> R:
        """Return what ``function`` makes of the grammars, in a thread for them, in which clients take turns.

        Its memory is held while it runs, and not while it waits for the thread, for which texts with memory may wait, too.

        Raises:
            ApiError: too many grammars of the client wait for this, or there is no room for it now (status 429), or never
                (413), or it took too long (503).
        """
        if self.grammar_threads.waiting(CLIENT.get()) >= _GRAMMARS_WAITING:
            raise too_many_grammars(_GRAMMARS_WAITING)

        memory = REQUEST_MEMORY.get()

        def work() -> R:
            with self.watched, nullcontext() if memory is None else memory.checking():
                try:
                    return function(self.grammars)
                finally:
                    if memory is not None and memory.check_bytes:
                        trim_heap()

        def attempt() -> Awaitable[R]:
            future = self.grammar_threads.submit(work)
            if memory is not None:
                memory.outlasts(future)
            return asyncio.wrap_future(future)

        try:
            async with asyncio.timeout(GRAMMAR_S):
                return await (attempt() if memory is None else memory.when_free(attempt))
        except TimeoutError:
            raise late_grammar(GRAMMAR_S) from None
