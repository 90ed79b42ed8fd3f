"""The places of requests: of those that are answered, of those whose bodies are on their way, and of those that only look.

A request has a place once its key is checked. One client may have all but a few of them. If none is free, the request
whose body has been on its way for the longest time loses its own, so that clients who announce bodies and send none keep
nobody out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from edgedec.runtime.server.errors import ApiError, server_ending
from edgedec.runtime.server.turns import CLIENT

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RequestPlace", "RequestPlaces"]

_PATIENT_SHARE = 8  # one of so many places may wait for its body for the whole time
_KEPT_SHARE = 8  # one of so many places of requests is kept for clients other than the one who has all others


class RequestPlaces:
    """The places of a server.

    Parameters:
        requests: most requests at a time that are answered, or whose bodies are on their way.
        inspections: most requests at a time that have no body.
        body_seconds: seconds in which a body must arrive while few others are on their way. With more than an eighth of
            ``requests`` it is shorter in proportion: an eighth of the time if all places wait for bodies.

    Members:
        active, inspecting: places of both kinds that are taken.
        draining: True if no further place is given, because the server is ending.
    """

    def __init__(self, *, requests: int, inspections: int, body_seconds: float) -> None:
        self._requests, self._inspections, self._body_seconds = requests, inspections, body_seconds
        self.active = self.inspecting = 0
        self.draining = False
        self._of_client = Counter[str]()  # places of requests that are answered, by client
        # The places whose bodies are on their way, in the order in which they began, with the end of their time.
        self._arriving: dict[RequestPlace, asyncio.Timeout] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    async def drain(self) -> None:
        """Give no further place, and return when the last one is left."""
        self.draining = True
        await self._empty.wait()

    def take(self, *, inspects: bool) -> RequestPlace:
        """Return a place for a request of ``turns.CLIENT``; leave it at the end of the request.

        Args:
            inspects: True for a request without a body.

        Raises:
            ApiError: the server is ending, or all places that the client may have are taken by requests that are being
                answered; the status is 503.
        """
        if self.draining:
            raise server_ending()
        client = CLIENT.get()
        share = self._requests - self._requests // _KEPT_SHARE
        if inspects:
            if self.inspecting >= self._inspections:
                raise _full(self._inspections, "requests about the server")
        elif self._of_client[client] >= share and not self._expire_oldest(client):
            raise _full(share, "requests of this client")
        elif self.active >= self._requests and not self._expire_oldest():
            raise _full(self._requests, "requests")
        place = RequestPlace(self, client, inspects=inspects)
        self._count(place, 1)
        return place

    @property
    def patience_s(self) -> float:
        """Seconds that a body may take now."""
        return self._body_seconds / max(1.0, _PATIENT_SHARE * len(self._arriving) / self._requests)

    def _count(self, place: RequestPlace, change: int) -> None:
        if place.inspects:
            self.inspecting += change
        else:
            self.active += change
            self._of_client[place.client] += change
            if not self._of_client[place.client]:
                del self._of_client[place.client]
        if self.active or self.inspecting:
            self._empty.clear()
        else:
            self._empty.set()

    def _expire_oldest(self, client: str | None = None) -> bool:
        """Take the place of the body, of one client or of all, that has been on its way for the longest time.

        Return False if there is none.
        """
        for place, timeout in self._arriving.items():
            if client is not None and place.client != client:
                continue
            if not timeout.expired():
                timeout.reschedule(0)
            place.leave()
            return True
        return False

    def _bound_oldest(self) -> None:
        """Set the end of the oldest body's time by the number of them now. The others end later in any case."""
        for place, timeout in self._arriving.items():
            if not timeout.expired():
                timeout.reschedule(place.arriving_since + self.patience_s)
            return

    def await_body(self, place: RequestPlace, timeout: asyncio.Timeout) -> None:
        """Note that the body of a place is on its way, until ``timeout`` is over."""
        self._arriving[place] = timeout
        self._bound_oldest()

    def end_body(self, place: RequestPlace) -> None:
        """Note that the body of a place is not on its way any more. A second call does nothing."""
        self._arriving.pop(place, None)
        self._bound_oldest()

    def left(self, place: RequestPlace) -> None:
        """Count a place as free."""
        self.end_body(place)
        self._count(place, -1)


def _full(limit: int, what: str) -> ApiError:
    return ApiError(
        503,
        f"the server answers {limit} {what} already; try again later",
        code="too_many_requests",
        headers={"Retry-After": "1"},
    )


class RequestPlace:
    """A place, which is left at the end of the ``with`` block.

    Parameters:
        places: all places.
        client: client that has it.
        inspects: True for a request without a body.

    Members:
        taken: False once it was left.
        arriving_since: time at which the body was first awaited, in seconds of the loop.
    """

    def __init__(self, places: RequestPlaces, client: str, *, inspects: bool) -> None:
        self._places, self.client, self.inspects = places, client, inspects
        self.taken = True
        self.arriving_since = 0.0

    def leave(self) -> None:
        """Leave the place. A second call does nothing."""
        if self.taken:
            self.taken = False
            self._places.left(self)

    @asynccontextmanager
    async def arriving(self) -> AsyncIterator[None]:
        """Bound the time of the block, which reads the request's body.

        Raises:
            TimeoutError: the body took too long, or others needed the place.
        """
        self.arriving_since = asyncio.get_running_loop().time()
        async with asyncio.timeout(None) as timeout:
            self._places.await_body(self, timeout)
            try:
                yield
            finally:
                self._places.end_body(self)
        if not self.taken:  # the body arrived after the place was lost
            raise TimeoutError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
