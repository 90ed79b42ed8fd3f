"""The memory of one request outside the model: its body and the values in it, its texts while they are converted, and what
its answer reports of each token.

All of it is reserved in the server's ledger before it is taken, and given back when the answer was sent. What has no room
now waits while texts are written, because they end and give theirs back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self, TypeVar

from edgedec.runtime.engine.ledger import AdmissionError
from edgedec.runtime.server.errors import ApiError, short_of_memory, too_large_for_memory
from edgedec.runtime.server.memory import ServerMemory

__all__ = ["REQUEST_MEMORY", "RequestMemory", "hold_memory", "ids_bytes", "rendering_bytes", "text_bytes"]

R = TypeVar("R")
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
_LOOK_S, _PATIENCE_S = 0.01, 10.0  # seconds between looks for room, and for which to wait while no text is written


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
    """The memory of one request. Use it as a context manager, whose end gives everything back.

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

        Raises:
            ApiError: see ``hold``.
        """
        converted = ExitStack()
        await self._wait_for(nbytes, "the conversion of the text to tokens", converted)
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
        with self._reserved(self.check_bytes, "the check of the grammar", "memory_budget_exceeded"):
            yield

    async def when_free(self, attempt: Callable[[], Awaitable[R]]) -> R:
        """Return what ``attempt`` returns. While it has no memory, and texts are written, it is called again and again.

        Raises:
            ApiError: of ``attempt``; the status is 429 if there was no memory in the end.
        """
        patience_s = _PATIENCE_S
        while True:
            try:
                return await attempt()
            except ApiError as error:
                if error.status_code != 429 or self._memory.ledger.is_shut or patience_s <= 0:
                    raise
            await asyncio.sleep(_LOOK_S)
            patience_s = _PATIENCE_S if self._memory.writes() else patience_s - _LOOK_S

    async def _wait_for(self, nbytes: int, what: str, into: ExitStack) -> None:
        async def attempt() -> None:
            into.enter_context(self._reserved(nbytes, what, "memory_budget_exceeded"))

        await self.when_free(attempt)

    @contextmanager
    def _reserved(self, nbytes: int, what: str, code: str) -> Iterator[None]:
        if not nbytes:
            yield
            return
        try:
            reservation = self._memory.ledger.reserve("connections", nbytes)
        except AdmissionError as error:
            if self.nbytes + nbytes > error.largest_bytes:
                raise too_large_for_memory(error, what, code=code) from error
            if not self._memory.ledger.is_shut:
                raise short_of_memory(error, 1) from error
            self._memory.note_refusal()
            raise short_of_memory(error, self._memory.retry_seconds) from error
        self.nbytes += nbytes
        try:
            with reservation:
                yield
        finally:
            self.nbytes -= nbytes


# The memory of the request that is being answered; None outside of the gate.
REQUEST_MEMORY: ContextVar[RequestMemory | None] = ContextVar("edgedec.request_memory", default=None)
