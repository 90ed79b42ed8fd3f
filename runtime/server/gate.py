"""The gate in front of the application: checks requests, reads their bodies, and counts what is being answered."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgedec.runtime.server.connection import mark_refused
from edgedec.runtime.server.errors import ApiError, error_body
from edgedec.runtime.server.memory import ServerMemory
from edgedec.runtime.server.places import RequestPlace, RequestPlaces
from edgedec.runtime.server.request_log import RequestLog, RequestRecord
from edgedec.runtime.server.request_memory import REQUEST_MEMORY, RequestMemory
from edgedec.runtime.server.security import PUBLIC_PATHS, RequestRules, too_large
from edgedec.runtime.server.settings import ServerSettings
from edgedec.runtime.server.turns import CLIENT

__all__ = ["Gate"]

_METHODS = "GET, HEAD, POST, OPTIONS"
_ABSOLUTE_FORM = re.compile(rb"(?i:https?)://(?P<authority>[^/]*)(?P<path>/.*)?", re.DOTALL)
_PREFLIGHT_SECONDS = "600"  # seconds for which a browser remembers the answer to its question
_DISCARDED_BYTES, _DISCARDED_S = 8 << 20, 2.0  # bytes and seconds of a refused body that are read and forgotten
_LINGERING = 64  # refused requests at a time whose bodies are read; the connections of others close at once
# Sent with every response. A page of another site cannot frame the server's pages, and nothing guesses their type.
_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'"),
    ("Cache-Control", "no-store"),
)


class Gate:
    """An ASGI application that lets requests through to another one.

    A request has a place once its key, its host and its origin are checked. One that is refused is answered before its body
    has arrived.

    Parameters:
        app: the application.
        settings: limits and rules.
        memory: the memory for bodies.
        log: gets a line for each request; None: there is no log.

    Members:
        places: the places of requests.
    """

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, memory: ServerMemory, log: RequestLog | None = None
    ) -> None:
        self.app, self.settings, self.rules = app, settings, RequestRules(settings)
        self._memory, self.log = memory, log
        self.places = RequestPlaces(
            requests=settings.requests, inspections=settings.inspections, body_seconds=settings.body_seconds
        )
        self._lingering = 0  # refused requests whose bodies are read and forgotten now

    @property
    def active(self) -> int:
        """Number of requests that are being answered, or whose bodies are on their way."""
        return self.places.active

    @property
    def draining(self) -> bool:
        """True if new requests are refused because the server is ending."""
        return self.places.draining

    async def drain(self) -> None:
        """Refuse new requests, and return when the last of the others is answered."""
        await self.places.drain()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket: there is none to connect to
            await send({"type": "websocket.close", "code": 1000})
            return
        scope = _in_origin_form(scope)
        record = RequestRecord.begun(scope)
        lingers = False
        try:
            lingers = await self._answer(scope, receive, record.watched(send), record)
        finally:
            if self.log is not None:
                self.log.write(record)
        if lingers:
            await self._linger(receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> bool:
        """Answer a request. Return True if the answer was sent and its end was not, because a body is on its way."""
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        origin = headers.get("origin")
        allowed = origin if origin is not None and self.rules.allows_origin(origin) else None
        send = _with_headers(send, allowed)
        if method == "OPTIONS" and allowed is not None and "access-control-request-method" in headers:
            await self._preflight(headers, send, record)
            return False
        if method == "OPTIONS" and path == "*":
            await self._tell_methods(headers, send, record)
            return False
        with ExitStack() as held:
            body = b""
            try:
                self.rules.check(method, path, headers)
                if path not in PUBLIC_PATHS:
                    CLIENT.set(self.rules.client(record.client or "", headers))
                    place = held.enter_context(self.places.take(inspects=method != "POST"))
                    memory = held.enter_context(RequestMemory(self._memory))
                    REQUEST_MEMORY.set(memory)
                    body = await self._read(headers, receive, place, memory) if method == "POST" else b""
            except ApiError as error:
                held.close()
                lingers = _has_body(headers)
                if lingers:
                    mark_refused(scope)
                closing = [("Connection", "close"), *(error.headers or {}).items()]
                await _refuse(send, error, record, closing, ends=not lingers)
                return lingers
            except _GoneError:
                return False
            await self.app(scope, _replayed(body, receive), send)
            return False

    async def _linger(self, receive: Receive, send: Send) -> None:
        """End the answer to a refused request when its body has arrived, or does not within limits.

        Many clients read no answer before they have sent everything, and would see a connection that breaks instead.
        """
        if self._lingering < _LINGERING:
            self._lingering += 1
            try:
                await _discard(receive)
            finally:
                self._lingering -= 1
        await send({"type": "http.response.body", "body": b""})

    async def _preflight(self, headers: Headers, send: Send, record: RequestRecord) -> None:
        """Answer a browser that asks on behalf of an allowed page whether it may send a request."""
        try:
            self.rules.check("OPTIONS", "/health", headers)  # a browser sends no key with this question
        except ApiError as error:
            await _refuse(send, error, record, ())
            return
        answer = [
            ("Access-Control-Allow-Methods", _METHODS),
            ("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key"),
            ("Access-Control-Max-Age", _PREFLIGHT_SECONDS),
        ]
        raw = [(name.lower().encode(), value.encode()) for name, value in answer]
        await send({"type": "http.response.start", "status": 200, "headers": [*raw, (b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def _tell_methods(self, headers: Headers, send: Send, record: RequestRecord) -> None:
        """Answer ``OPTIONS *``, which asks for the methods of the whole server."""
        try:
            self.rules.check("OPTIONS", "/health", headers)
            await _send_json(send, 200, {}, [("Allow", _METHODS)])
        except ApiError as error:
            await _refuse(send, error, record, ())

    async def _read(self, headers: Headers, receive: Receive, place: RequestPlace, memory: RequestMemory) -> bytes:
        """Return the body of a request, which ``memory`` holds from now on.

        Memory is taken as the body arrives, so that a body that is only announced takes none from others.

        Raises:
            ApiError: it is too large, takes too long to arrive, or there is no memory for it.
        """
        limit = int(headers.get("content-length", self.settings.body_bytes))
        if "content-length" in headers:
            memory.check_body(limit)  # refuse at once what has no room
        body, covered = bytearray(), 0
        try:
            async with place.arriving():
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneError
                    body += message.get("body", b"")
                    if len(body) > self.settings.body_bytes:
                        raise too_large(self.settings.body_bytes)
                    if len(body) > covered:
                        covered = min(limit, 2 * len(body))
                        memory.hold_body(covered)
                    if not message.get("more_body", False):
                        memory.hold_body(len(body))
                        memory.body_bytes = len(body)
                        return bytes(body)
        except TimeoutError:
            raise ApiError(
                408,
                f"the body did not arrive within {self.places.patience_s:.3g} s; with many bodies on their way the time "
                "is shorter",
                code="body_timeout",
            ) from None


def _in_origin_form(scope: Scope) -> Scope:
    """Return a request with the path of its target where that is a whole URI, as clients send to proxies.

    The URI's authority takes the place of a single ``Host``, so the check of names sees what the request is for.

    Source: RFC 9112, 3.2.2.
    """
    match = _ABSOLUTE_FORM.fullmatch(scope.get("raw_path") or b"")
    if match is None:
        return scope
    path, hosts = match["path"] or b"/", [value for name, value in scope["headers"] if name == b"host"]
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    hosts = [match["authority"]] if len(hosts) == 1 else hosts  # others are refused for their number
    named = [(b"host", value) for value in hosts]
    return {**scope, "raw_path": path, "path": unquote(path.decode("ascii")), "headers": [*named, *others]}


async def _discard(receive: Receive) -> None:
    """Read the body of a request that is refused, within limits.

    Many clients read no answer before they have sent everything, and would see a connection that breaks instead.
    """
    left = _DISCARDED_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARDED_S):
            while left > 0:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                left -= len(message.get("body", b""))


class _GoneError(Exception):
    """The client left before it had sent its body."""


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a function that gives the application the body, and after it what else arrives."""
    first = True

    async def replay() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


def _with_headers(send: Send, allowed: str | None) -> Send:
    """Return a function that adds the headers of every response. ``allowed`` is the origin of a page that may read it."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            for name, value in _HEADERS:
                headers.setdefault(name, value)
            if allowed is not None:
                headers["Access-Control-Allow-Origin"] = allowed
                headers.add_vary_header("Origin")
            message["headers"] = [(_capitalized(name), value) for name, value in headers.raw]
        await send(message)

    return send_with_headers


def _capitalized(name: bytes) -> bytes:
    """Return the usual spelling of a header's name, such as ``Content-Type``, which some small clients compare.

    The HTTP server looks for its own ``connection`` in lower case.
    """
    return name if name == b"connection" else name.title()


def _has_body(headers: Headers) -> bool:
    """Return True if a body may be on its way: a client that asks before it sends one gets the answer first."""
    announced = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    return announced and headers.get("expect", "").lower() != "100-continue"


async def _refuse(
    send: Send, error: ApiError, record: RequestRecord, headers: Iterable[tuple[str, str]], *, ends: bool = True
) -> None:
    record.refused(error)
    await _send_json(send, error.status_code, error_body(error, record.path), headers, ends=ends)


async def _send_json(
    send: Send, status: int, value: object, headers: Iterable[tuple[str, str]], *, ends: bool = True
) -> None:
    """Send a whole answer. Its end is left out without ``ends``, so that the connection stays open."""
    body = json.dumps(value).encode()
    own = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    raw = [(name.lower().encode(), text.encode()) for name, text in (*own, *headers)]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": not ends})
