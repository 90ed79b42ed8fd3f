"""Connections whose silence is bounded, in the time they may take and in their number.

The HTTP server under the application waits for the head of a request, and for a client to read, as long as it takes. A few
hundred silent clients would keep all others out.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from typing import Any

import h11
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgedec.runtime.server.errors import ApiError

__all__ = ["BoundedConnection", "mark_refused"]

_REFUSED = "edgedec.refused"  # member of the state of an ASGI scope


def mark_refused(scope: Scope) -> None:
    """Note that a request was refused, so that its connection may be closed for another one."""
    scope.setdefault("state", {})[_REFUSED] = True


class BoundedConnection(H11Protocol):
    """An HTTP connection that ends when its client is silent for too long.

    If there are more connections than the limit, the one that has waited longest for a request is closed; those with a
    request are kept, unless it was refused.

    Parameters:
        limit: maximum number of connections.
        order: all connections of the server, the one first whose last answer, or else whose beginning, is furthest back.
        head_seconds: seconds from the first byte of a request, or from the beginning of the connection, until its head has
            arrived. Further bytes do not extend them.
        stall_seconds: seconds for which a client may leave the answer unread.
        options: further parameters of the base class.
    """

    def __init__(
        self,
        *,
        limit: int,
        order: OrderedDict[BoundedConnection, None],
        head_seconds: float,
        stall_seconds: float,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._limit, self._order, self._head_seconds, self._stall_seconds = limit, order, head_seconds, stall_seconds
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _kept(self) -> bool:
        return self._answering and _REFUSED not in self.scope.get("state", {})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base class has it
        super().connection_made(transport)
        self._order[self] = None
        self._head = self.loop.call_later(self._head_seconds, self._give_up)
        if len(self.connections) > self._limit:
            next(other for other in self._order if not other._kept)._drop()  # there is one, because this one is silent

    def connection_lost(self, exc: Exception | None) -> None:
        self._order.pop(self, None)
        self._forget_head()
        self._forget_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # begins the next request, if the client has sent it already
        if self in self._order:
            self._order.move_to_end(self)
        if self.conn.trailing_data[0]:
            self._watch_head()
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._watch_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._forget_reader()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self._drop()
        else:
            super().timeout_keep_alive_handler()

    def _watch_head(self) -> None:
        """Bound the time of a head that has begun, or stop doing so when it is complete."""
        if self._answering or self.transport.is_closing():
            self._forget_head()
        elif self._head is None:
            self._head = self.loop.call_later(self._head_seconds, self._give_up)

    def _forget_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _forget_reader(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _watch_reader(self) -> None:
        if self._stall is None:
            self._stall = self.loop.call_later(self._stall_seconds, self._drop)

    def _give_up(self) -> None:
        """Close a connection whose head did not arrive. Tell so if it has begun."""
        if self.conn.trailing_data[0] and self.conn.our_state is h11.IDLE:
            error = ApiError(408, f"the head of the request did not arrive within {self._head_seconds:g} seconds")
            body = json.dumps(error.body).encode()
            headers = [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ]
            for event in (h11.Response(status_code=408, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self._watch_reader()
            self.transport.close()
        else:
            self._drop()

    def _drop(self) -> None:
        """Close the connection at once, with what was not sent yet."""
        self.connections.discard(self)  # at once, because ``connection_lost`` is called later
        self._order.pop(self, None)
        self.transport.abort()
