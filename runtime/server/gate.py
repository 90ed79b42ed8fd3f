"""The gate in front of the application: checks requests, reads their bodies, and counts what is being answered."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgedec.runtime.engine.ledger import AdmissionError
from edgedec.runtime.server.errors import ApiError, short_of_memory
from edgedec.runtime.server.memory import ServerMemory
from edgedec.runtime.server.request_log import RequestLog, RequestRecord
from edgedec.runtime.server.security import PUBLIC_PATHS, RequestRules, too_large
from edgedec.runtime.server.settings import ServerSettings

__all__ = ["Gate"]

_METHODS = "GET, POST, OPTIONS"
_ABSOLUTE_FORM = re.compile(rb"(?i:https?)://(?P<authority>[^/]*)(?P<path>/.*)?", re.DOTALL)
_PREFLIGHT_SECONDS = "600"  # seconds for which a browser remembers the answer to its question
_DISCARDED_BYTES, _DISCARDED_S = 8 << 20, 2.0  # bytes and seconds of a refused body that are read and forgotten
# Sent with every response. A page of another site cannot frame the server's pages, and nothing guesses their type.
_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'"),
    ("Cache-Control", "no-store"),
)


class Gate:
    """An ASGI application that lets requests through to another one.

    Parameters:
        app: the application.
        settings: limits and rules.
        memory: the memory for bodies.
        log: gets a line for each request; None: there is no log.

    Members:
        active: requests that are being answered now.
        draining: True if new requests are refused because the server is ending.
    """

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, memory: ServerMemory, log: RequestLog | None = None
    ) -> None:
        self.app, self.settings, self.rules = app, settings, RequestRules(settings)
        self._memory, self.log = memory, log
        self.active = 0
        self.draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    async def drain(self) -> None:
        """Refuse new requests, and return when the last of the others is answered."""
        self.draining = True
        await self._empty.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket: there is none to connect to
            await send({"type": "websocket.close", "code": 1000})
            return
        scope = _in_origin_form(scope)
        record = RequestRecord.begun(scope)
        counted = scope["path"] not in PUBLIC_PATHS
        if counted:
            self.active += 1
            self._empty.clear()
        try:
            await self._answer(scope, receive, record.watched(send), record)
        finally:
            if self.log is not None:
                self.log.write(record)
            if counted:
                self.active -= 1
                if not self.active:
                    self._empty.set()

    async def _answer(self, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> None:
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        origin = headers.get("origin")
        allowed = origin if origin is not None and self.rules.allows_origin(origin) else None
        send = _with_headers(send, allowed)
        if method == "OPTIONS" and allowed is not None and "access-control-request-method" in headers:
            await self._preflight(headers, send, record)
            return
        if method == "OPTIONS" and path == "*":
            await self._tell_methods(headers, send, record)
            return
        with ExitStack() as held:
            try:
                try:
                    self.rules.check(method, path, headers)
                    self._check_room(path)
                    if method == "POST":
                        held.enter_context(self._held(headers))
                except ApiError:
                    if method == "POST":
                        await _discard(receive)
                    raise
                body = await self._read(receive) if method == "POST" else b""
            except ApiError as error:
                closing = [("Connection", "close")]  # a part of the body may be left
                await _refuse(send, error, record, [*closing, *(error.headers or {}).items()])
                return
            except _GoneError:
                return
            await self.app(scope, _replayed(body, receive), send)

    def _held(self, headers: Headers) -> AbstractContextManager[object]:
        """Return a context with the memory of a request's body.

        Raises:
            ApiError: there is no room for it now (status 429), or never (413).
        """
        try:
            return self._memory.hold_body(int(headers.get("content-length", self.settings.body_bytes))) or nullcontext()
        except AdmissionError as error:
            if error.never:
                raise ApiError(
                    413, f"the body is too large for the memory budget: {error}", code="body_too_large"
                ) from error
            raise short_of_memory(error, 1) from error

    def _check_room(self, path: str) -> None:
        if path in PUBLIC_PATHS:
            return
        if self.draining:
            raise ApiError(
                503, "the server is ending; ask another one", code="shutting_down", headers={"Retry-After": "5"}
            )
        if self.active > self.settings.requests:
            raise ApiError(
                503,
                f"the server answers {self.settings.requests} requests already; try again later",
                code="too_many_requests",
                headers={"Retry-After": "1"},
            )

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

    async def _read(self, receive: Receive) -> bytes:
        """Return the body of a request.

        Raises:
            ApiError: it is too large, or takes too long to arrive.
        """
        body = bytearray()
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneError
                    body += message.get("body", b"")
                    if len(body) > self.settings.body_bytes:
                        if message.get("more_body", False):
                            await _discard(receive)
                        raise too_large(self.settings.body_bytes)
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise ApiError(
                408, f"the body did not arrive within {self.settings.body_seconds:g} s", code="body_timeout"
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


async def _refuse(send: Send, error: ApiError, record: RequestRecord, headers: Iterable[tuple[str, str]]) -> None:
    record.refused(error)
    await _send_json(send, error.status_code, error.body, headers)


async def _send_json(send: Send, status: int, value: object, headers: Iterable[tuple[str, str]]) -> None:
    body = json.dumps(value).encode()
    own = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    raw = [(name.lower().encode(), text.encode()) for name, text in (*own, *headers)]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
