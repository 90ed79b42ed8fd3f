"""The process of the server: its connections, its signals, and its orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import uvicorn

from edgedec.runtime.server.connection import BoundedConnection
from edgedec.runtime.server.gate import Gate
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.sockets import BACKLOG
from edgedec.runtime.server.systemd import Notifier

__all__ = ["http_server", "run_server"]

# Connections that are accepted before any is looked at. Beside 300 clients without a key, a chat began after 250 ms with 16
# and after 420 with 128.
_ACCEPTED = 16
_SPARE_FILES = 384  # files left for connections that are accepted before others are closed, and for other uses
_LEAST_SHARE = 4  # one of so many files is a connection, where fewer are spare
_KEEP_ALIVE_S = 30  # seconds for which a connection without a request stays open
_DATE_S = 1.0  # seconds between renewals of the date in answers
# Seconds after which a thread that computes gives the interpreter to one that waits for it. The loop waits for it several
# times in each request, and Python's usual 5 ms would be the most of a short answer's time beside a large schema. With 1 ms
# eight streams had 0.65 to 0.98 of their tokens per second with 5 ms, and with 2 ms 0.99 to 1.06.
_SWITCH_S = 0.002
_SIGNALLED = 128  # exit code of a signal, minus the signal's number, as in shells


class _Server(uvicorn.Server):
    """A server of uvicorn that leaves the signals to ``run_server``, and sleeps while nothing happens.

    It wakes once a second, for the date in the answers, and at once when ``should_exit`` is set, in any thread. That of
    uvicorn looks ten times a second.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        self._exits, self._told = False, asyncio.Event()
        self._sleeping: asyncio.AbstractEventLoop | None = None
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        return self._exits

    @should_exit.setter
    def should_exit(self, exits: bool) -> None:
        self._exits = exits
        if self._sleeping is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._sleeping.call_soon_threadsafe(self._told.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(BACKLOG)

    async def main_loop(self) -> None:
        self._sleeping = asyncio.get_running_loop()
        try:
            while not await self.on_tick(0):  # the count of a tick that renews the date
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._told.wait(), _DATE_S)
        finally:
            self._sleeping = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _connection_limit(most: int) -> int:
    """Return the maximum number of connections, which leaves the process files for other uses."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return most
    return min(most, max(files - _SPARE_FILES, files // _LEAST_SHARE))


def http_server(gate: Gate) -> uvicorn.Server:
    """Return the HTTP server of an application. It trusts no header of a proxy, and logs no request."""
    settings = gate.settings
    connection = partial(
        BoundedConnection,
        limit=_connection_limit(settings.connections),
        order=OrderedDict(),
        head_seconds=settings.head_seconds,
        stall_seconds=settings.stall_seconds,
    )
    config = uvicorn.Config(
        gate,
        http=connection,  # type: ignore[arg-type]  # called as the class would be
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        backlog=_ACCEPTED,  # asyncio takes this number for both; see ``_Server.startup``
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE_S,
    )
    return _Server(config)


def run_server(
    gate: Gate,
    service: ModelService,
    *sockets: socket.socket,
    ready: Callable[[], None] = lambda: None,
    notifier: Notifier | None = None,
) -> None:
    """Load the model, and answer requests until a signal ends the server.

    The first SIGTERM or SIGINT lets the requests that were accepted be answered, refuses new ones, and then ends the
    server. The second one ends the process at once.

    Parameters:
        gate: the application.
        service: the model.
        sockets: listen.
        ready: called when the model is loaded.
        notifier: is told that the server ends, and gets signs of life; None: nobody is told.

    Raises:
        EdgedecError: the model cannot be loaded.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        asyncio.run(_serve(gate, service, sockets, ready, notifier or Notifier()))
    finally:
        sys.setswitchinterval(usual)


async def _serve(
    gate: Gate,
    service: ModelService,
    sockets: Sequence[socket.socket],
    ready: Callable[[], None],
    notifier: Notifier,
) -> None:
    server = http_server(gate)
    loop, drains = asyncio.get_running_loop(), list[asyncio.Task[None]]()

    async def drain() -> None:
        await gate.drain()
        server.should_exit = True

    def on_signal(number: signal.Signals) -> None:
        if drains:
            os._exit(_SIGNALLED + number)  # at once: the model's thread may be within a long pass
        notifier.tell("STOPPING=1", status="answers the requests that it accepted, and ends")
        drains.append(asyncio.create_task(drain()))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    service.start()
    loaded = asyncio.create_task(_await_load(service, server, ready))
    signs = asyncio.create_task(_give_signs(service, notifier))
    try:
        await server.serve(sockets=list(sockets))
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        signs.cancel()
        await asyncio.to_thread(service.close)
    if loaded.done():
        loaded.result()  # raises the error of the loading
    else:
        loaded.cancel()


async def _await_load(service: ModelService, server: uvicorn.Server, ready: Callable[[], None]) -> None:
    try:
        await asyncio.wrap_future(service.loaded)
    except BaseException:
        server.should_exit = True
        raise
    ready()


async def _give_signs(service: ModelService, notifier: Notifier) -> None:
    """Tell the watchdog twice in its time that this loop runs and that the model's thread has not failed."""
    while notifier.watchdog_s is not None:
        if service.alive:
            notifier.tell("WATCHDOG=1")
        await asyncio.sleep(notifier.watchdog_s / 2)
