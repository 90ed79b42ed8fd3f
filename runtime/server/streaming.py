"""The lines of a stream, pings while nothing happens, and the end of the work when its client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from edgedec.errors import EdgedecError
from edgedec.runtime.server.errors import ApiError, answer_cancelled, from_edgedec
from edgedec.runtime.server.progress import TextProgress
from edgedec.runtime.server.request_memory import REQUEST_MEMORY
from edgedec.runtime.server.submission import GoneError, Submission, TextEnd, TextEvent, TextPart

__all__ = ["EVENTS", "EventStream", "Framing", "Reply", "cancelled_on_disconnect", "compact_json", "respond"]

_LOG = logging.getLogger(__name__)
_LARGE_BYTES = 1 << 20  # bytes of a request whose answer is made outside of the loop
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # the second keeps nginx from collecting the lines
Chunk = Mapping[str, Any]


def compact_json(value: Any) -> bytes:
    """Return JSON data in one line, in UTF-8."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _event(chunk: Chunk) -> bytes:
    return b"data: " + compact_json(chunk) + b"\n\n"


def _error_chunk(error: ApiError) -> Iterable[Chunk]:
    return [error.body]


@dataclass(frozen=True, kw_only=True)
class Framing:
    """The bytes of a stream.

    Members:
        media_type: the value of ``Content-Type``.
        write: returns the bytes of a chunk.
        ping: bytes that are sent while nothing happens, and that mean nothing; empty if the form has none.
        final: bytes after the last chunk of a stream that did not fail.
        failed: returns the last chunks of a stream that failed.
    """

    media_type: str = "text/event-stream"
    write: Callable[[Chunk], bytes] = _event
    ping: bytes = b": ping\n\n"
    final: bytes = b"data: [DONE]\n\n"
    failed: Callable[[ApiError], Iterable[Chunk]] = _error_chunk


EVENTS = Framing()  # server-sent events as OpenAI's chats have them


class Reply(Protocol):
    """The form of an answer: an object, or the chunks of a stream."""

    @property
    def framing(self) -> Framing:
        """The bytes of a stream."""

    def opening(self) -> Iterator[Chunk]:
        """Yield the chunks before the first event."""

    def progress(self, event: TextProgress) -> Iterator[Chunk]:
        """Yield the chunks that tell how far a prompt was read."""

    def part(self, event: TextPart) -> Iterator[Chunk]:
        """Yield the chunks of a part."""

    def ending(self, event: TextEnd) -> Iterator[Chunk]:
        """Yield the chunks of the end of one text."""

    def closing(self) -> Iterator[Chunk]:
        """Yield the chunks after all texts."""

    def whole(self) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the object of the answer; all events were given to ``part`` and ``ending``."""


@asynccontextmanager
async def cancelled_on_disconnect(receive: Receive, submission: Submission) -> AsyncIterator[None]:
    """Cancel the submission when the client closes its connection, and at the end of the block if it has not ended."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        submission.cancel()

    watcher = asyncio.create_task(watch())
    try:
        with submission:
            yield
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


async def respond(
    receive: Receive,
    submission: Submission,
    reply: Reply,
    *,
    stream: bool,
    ping_seconds: float,
) -> Response:
    """Return the response with the answers of a submission.

    A stream begins after the first event, or after ``ping_seconds`` without one, so that an error before the first token
    still has its own status.

    Raises:
        ApiError, EdgedecError: an answer failed before the first byte.
    """
    try:
        if stream:
            return await _begun(receive, submission, reply, ping_seconds)
        async with cancelled_on_disconnect(receive, submission):
            while not submission.ended:
                _chunks(reply, await submission.next())
        memory = REQUEST_MEMORY.get()
        if memory is None or memory.nbytes < _LARGE_BYTES:
            return JSONResponse(reply.whole())
        return Response(await asyncio.to_thread(_large_json, reply), media_type="application/json")
    except GoneError:
        return JSONResponse(answer_cancelled().body, 503)


def _large_json(reply: Reply) -> bytes:
    """Return the object of an answer as JSON, made in parts, between which other threads run."""
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    content = bytearray()
    for part in encoder.iterencode(reply.whole()):
        content += part.encode()
    return bytes(content)


async def _begun(receive: Receive, submission: Submission, reply: Reply, ping_seconds: float) -> Response:
    first = asyncio.create_task(submission.next(ping_seconds))
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait([first, gone], return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            submission.cancel()
        event = await first
    except BaseException:
        submission.cancel()
        raise
    finally:
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
    return EventStream(submission, reply, first=event, ping_seconds=ping_seconds)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _chunks(reply: Reply, event: TextEvent | None) -> list[Chunk]:
    if isinstance(event, TextProgress):
        return list(reply.progress(event))
    if isinstance(event, TextPart):
        return list(reply.part(event))
    return [] if event is None else list(reply.ending(event))


class EventStream(Response):
    """A stream of an answer's chunks.

    Parameters:
        submission: the answers; cancelled when the client leaves.
        reply: makes the chunks.
        first: the first event, if it was awaited already.
        ping_seconds: seconds without an event after which a ping is sent.
    """

    def __init__(
        self,
        submission: Submission,
        reply: Reply,
        *,
        first: TextEvent | None,
        ping_seconds: float,
    ) -> None:
        super().__init__(headers=_HEADERS, media_type=reply.framing.media_type)
        del self.headers["content-length"]
        self._submission, self._reply, self._first, self._ping_seconds = submission, reply, first, ping_seconds
        self._framing = reply.framing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with cancelled_on_disconnect(receive, self._submission):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with contextlib.suppress(GoneError):
                async for data in self._lines():
                    if data:
                        await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _lines(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the stream, whole chunks each."""
        try:
            yield self._written(self._reply.opening())
            if chunks := _chunks(self._reply, self._first):
                yield self._written(chunks)
            while not self._submission.ended:
                event = await self._submission.next(self._ping_seconds)
                if event is None:
                    yield self._framing.ping
                    continue
                events = [event, *self._submission.available()]  # a step of the model may write several tokens
                yield self._written(chunk for event in events for chunk in _chunks(self._reply, event))
            yield self._written(self._reply.closing()) + self._framing.final
        except EdgedecError as error:
            yield self._written(self._framing.failed(from_edgedec(error)))
        except ApiError as error:
            yield self._written(self._framing.failed(error))
        except GoneError:
            raise
        except Exception:
            _LOG.exception("a stream failed")
            yield self._written(self._framing.failed(ApiError(500, "an unexpected error, see the server's log")))

    def _written(self, chunks: Iterable[Chunk]) -> bytes:
        return b"".join(map(self._framing.write, chunks))
