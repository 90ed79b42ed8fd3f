"""The memory of one request outside the model: its body and the values in it, its texts while they are converted, and what
its answer reports of each token.

All of it is reserved in the server's ledger before it is taken, and given back when the answer was sent. What has no room
now waits while texts are written, because they end and give theirs back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from edgedec.runtime.engine.ledger import AdmissionError
from edgedec.runtime.server.errors import ApiError, ShortMemoryError, short_of_memory, too_large_for_memory
from edgedec.runtime.server.memory import WORK, ServerMemory

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["REQUEST_MEMORY", "RequestMemory", "hold_memory", "ids_bytes", "rendering_bytes", "text_bytes"]

R = TypeVar("R")
_ITEM = "connections"  # item of the ledger for what is held until the answer was sent
# Bytes for each byte of a body (as read, and as text), and of a body up to which the place of its connection has them.
_BODY_BYTE, _SMALL_BODY = 4, 16 << 10
# Bytes of a value of a body, such as an empty object or a number in a list, as a bound of what was measured (72), and the
# number of values up to which they are those of a small body.
_VALUE, _FEW_VALUES = 80, 1 << 10
# Bytes for each byte of a text that the tokenizers library takes for its tokens, with their places and spellings, and their
# ids, as a bound of what was measured (351, for a text of random signs).
_TEXT_BYTE = 384
_RENDERED_BYTE = 32  # bytes for each byte of messages that are rendered
_ID = 160  # bytes of an id that is converted to text: the id, its spelling, and its part of the text and of the answer
# Bytes that the check of a grammar takes, as bounds of what was measured: at least, for each byte of the body and each value
# in it, and at most, because grammars are limited themselves. What small bodies take is within the tolerance of a plan.
_CHECK, _CHECKED_BYTE, _CHECKED_VALUE, _MOST_CHECKED = 1 << 20, 192, 2048, 40 << 20
_UNCHECKED_BODY = 4 << 10
_CLASS = 7 << 10  # bytes of a class of characters in a regular expression, such as ``\w``, which a backslash begins
# Seconds between looks for room, and for which the first request that waits, and another one, does so while nothing ends.
_LOOK_S, _PATIENCE_S, _BRIEF_S = 0.01, 10.0, 0.1


def text_bytes(text: str) -> int:
    """Return the memory that the conversion of a text to ids takes at most, in bytes."""
    return _TEXT_BYTE * (len(text) if text.isascii() else len(text.encode(errors="replace")))


def ids_bytes(count: int) -> int:
    """Return the memory that the conversion of so many ids to text takes at most, in bytes."""
    return _ID * count


def rendering_bytes() -> int:
    """Return the memory that the request's messages take at most while a chat template renders them, in bytes."""
    memory = REQUEST_MEMORY.get()
    return 0 if memory is None else _RENDERED_BYTE * memory.body_bytes


async def hold_memory(nbytes: int, what: str) -> None:
    """Hold memory of the request that is being answered, see ``RequestMemory.hold``."""
    if (memory := REQUEST_MEMORY.get()) is not None:
        await memory.hold(nbytes, what)


class RequestMemory:
    """The memory of one request. Use it as a context manager, whose end gives everything back; see ``outlasts``.

    ``checking``, ``outlasts`` and the members may be used in any thread, all else in the loop's.

    Parameters:
        memory: the server's.

    Members:
        body_bytes: size of the request's body, once it was read.
        body_values: number of values in it, once they were counted.
        body_escapes: number of backslashes in its texts, likewise.
        nbytes: bytes that are held now.
    """

    def __init__(self, memory: ServerMemory) -> None:
        self._memory, self._held, self._body = memory, ExitStack(), ExitStack()
        self.body_bytes = self.body_values = self.body_escapes = self.nbytes = 0
        self._lock = threading.Lock()  # guards ``nbytes`` and the members below
        self._futures, self._left = 0, False  # work in threads, and whether the request has ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._left = True
            free = not self._futures
        if free:
            self._free()

    def outlasts(self, work: Future[Any]) -> None:
        """Give nothing back before ``work`` is done, whose thread goes on when the client has left."""

        def done(_: Future[Any]) -> None:
            with self._lock:
                self._futures -= 1
                free = self._left and not self._futures
            if free:
                self._free()

        with self._lock:
            self._futures += 1
        work.add_done_callback(done)

    def _free(self) -> None:
        self._body.close()
        self._held.close()

    def check_body(self, nbytes: int) -> None:
        """Refuse a body of ``nbytes`` that has no room.

        Raises:
            ApiError: see ``hold_body``.
        """
        with self._body_of(nbytes):
            pass

    def hold_body(self, nbytes: int) -> None:
        """Hold the memory of a body of ``nbytes``, in place of what was held for it so far.

        Raises:
            ApiError: there is no room for it now (status 429), or never (413).
        """
        self._body.close()
        self._body.enter_context(self._body_of(nbytes))

    @contextmanager
    def _body_of(self, nbytes: int) -> Iterator[None]:
        with self._reserved(_BODY_BYTE * nbytes if nbytes > _SMALL_BODY else 0, "the body", "body_too_large"):
            yield

    def hold_values(self, count: int, *, escapes: int) -> None:
        """Hold the memory of the values of a body: texts, numbers, arrays and objects.

        Args:
            count: number of values.
            escapes: number of backslashes in the texts.

        Raises:
            ApiError: see ``hold_body``.
        """
        self.body_values, self.body_escapes = count, escapes
        nbytes = _VALUE * count if count > _FEW_VALUES else 0
        self._held.enter_context(self._reserved(nbytes, f"the body, which has {count} values", "body_too_large"))

    async def hold(self, nbytes: int, what: str) -> None:
        """Hold further memory until the answer was sent, and wait for it while texts are written.

        Args:
            nbytes: bytes.
            what: names what takes it, for messages.

        Raises:
            ApiError: there is no room for it now (status 429), or never (413).
        """
        await self._wait_for(nbytes, what, self._held)

    async def converting(self, nbytes: int) -> ExitStack:
        """Return a context with the memory of a conversion, see ``text_bytes``, after waiting for it as ``hold`` does.

        It ends soon, so that a text which needs much memory waits for its end.

        Raises:
            ApiError: see ``hold``.
        """
        converted = ExitStack()
        await self._wait_for(nbytes, "the conversion of the text to tokens", converted, item=WORK)
        return converted

    @property
    def check_bytes(self) -> int:
        """The memory that the check of a grammar of this request takes at most, in bytes."""
        if self.body_bytes <= _UNCHECKED_BODY:
            return 0
        checked = _CHECK + _CHECKED_BYTE * self.body_bytes + _CHECKED_VALUE * self.body_values
        return min(_MOST_CHECKED, checked) + _CLASS * self.body_escapes

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Hold ``check_bytes`` within the block, which may be in another thread.

        Raises:
            ApiError: see ``hold_body``.
        """
        with self._reserved(self.check_bytes, "the check of the grammar", "memory_budget_exceeded", item=WORK):
            yield

    async def when_free(self, attempt: Callable[[], Awaitable[R]]) -> R:
        """Return what ``attempt`` returns. While it has no memory, and texts are written, it is called again and again.

        If nothing is going to end, requests that wait hold the memory of each other. Then only the first of them waits on.

        Raises:
            ApiError: of ``attempt``; the status is 429 if there was no memory in the end.
        """
        waiting, idle_s = self._memory.waiting, 0.0
        try:
            while True:
                try:
                    return await attempt()
                except ApiError as error:
                    patience_s = _PATIENCE_S if next(iter(waiting), self) is self else _BRIEF_S
                    if not isinstance(error, ShortMemoryError) or idle_s >= patience_s:
                        raise
                waiting.setdefault(self)
                await asyncio.sleep(_LOOK_S)
                idle_s = 0.0 if self._memory.ends_something else idle_s + _LOOK_S
        finally:
            waiting.pop(self, None)

    async def _wait_for(self, nbytes: int, what: str, into: ExitStack, *, item: str = _ITEM) -> None:
        async def attempt() -> None:
            into.enter_context(self._reserved(nbytes, what, "memory_budget_exceeded", item=item))

        await self.when_free(attempt)

    @contextmanager
    def _reserved(self, nbytes: int, what: str, code: str, *, item: str = _ITEM) -> Iterator[None]:
        if not nbytes:
            yield
            return
        small = nbytes <= self._memory.ledger.floor_bytes
        if item == WORK and not small and self._memory.text_waits_for_work:
            raise ShortMemoryError(f"{what} waits until a text that needs much memory has begun; try again later")
        try:
            reservation = self._memory.reserve(item, nbytes)
        except AdmissionError as error:
            if self.nbytes + nbytes > error.largest_bytes:
                raise too_large_for_memory(error, what, code=code) from error
            if error.small or not self._memory.ledger.is_shut:
                raise ShortMemoryError(str(error)) from error
            self._memory.note_refusal()
            raise short_of_memory(error, self._memory.retry_seconds) from error
        with self._lock:
            self.nbytes += nbytes
        try:
            with reservation:
                yield
        finally:
            with self._lock:
                self.nbytes -= nbytes
            if item == WORK and self._memory.text_waits_for_work:
                self._memory.wake()


# The memory of the request that is being answered; None outside of the gate.
REQUEST_MEMORY: ContextVar[RequestMemory | None] = ContextVar("edgedec.request_memory", default=None)
