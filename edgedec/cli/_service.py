"""The ties of ``edgedec serve`` to what runs it as a service: its sockets, and the form of its lines on stderr."""

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import typer

from edgedec.cli._origins import flags_used
from edgedec.cli.console import notes_to
from edgedec.errors import UsageError
from edgedec.host.spelling import must_be_one_of

if TYPE_CHECKING:
    from edgedec.runtime.server.request_log import LogFormat, RequestLog

__all__ = ["listening", "log_format_named", "notes_as", "request_log", "socket_of_systemd"]


def socket_of_systemd(ctx: typer.Context) -> socket.socket | None:
    """Return the socket that systemd passed; None without one.

    Raises:
        UsageError: it cannot be used, or options ask for another one.
    """
    from edgedec.runtime.server.systemd import passed_socket

    passed = passed_socket()
    if passed is not None and (flags := flags_used(ctx, "host", "port")):
        passed.close()
        raise UsageError(
            f"{' and '.join(flags)}: systemd passed a socket, which has its address already; leave this out, or stop the "
            ".socket unit"
        )
    return passed


@contextmanager
def listening(passed: socket.socket | None, addresses: Sequence[str], port: int) -> Iterator[list[socket.socket]]:
    """Yield the sockets of a server, which are taken before the model is loaded, and close them at the end.

    Raises:
        DeviceError: an address is in use, or not one of this machine.
    """
    from edgedec.runtime.server.sockets import listen_all

    sockets = listen_all(addresses, port) if passed is None else [passed]
    try:
        yield sockets
    finally:
        for sock in sockets:
            sock.close()


def log_format_named(name: str) -> LogFormat:
    """Return the format of ``--log-format``, after the log of the process got it.

    Raises:
        UsageError: there is no such format.
    """
    from edgedec.runtime.server.request_log import LOG_FORMATS

    for known in LOG_FORMATS:
        if name == known:
            if known == "json":
                for handler in logging.getLogger().handlers:
                    handler.setFormatter(_JsonFormatter())
            return known
    raise UsageError(must_be_one_of("--log-format", name, LOG_FORMATS))


def request_log(form: LogFormat, *, wanted: bool) -> AbstractContextManager[RequestLog | None]:
    """Return the log of requests, on stderr; None if it is not wanted, or there is no stderr."""
    from edgedec.runtime.server.request_log import RequestLog

    try:
        descriptor = sys.stderr.fileno() if wanted else None
    except (AttributeError, OSError):
        descriptor = None
    return nullcontext() if descriptor is None else RequestLog(descriptor, form)


def notes_as(form: LogFormat) -> AbstractContextManager[None]:
    """Print the lines for the user on stderr in the form of the log."""

    def put(text: str) -> None:
        line = _line(datetime.now(timezone.utc), "notice", "edgedec", text)
        sys.stderr.write(line + "\n")  # whole, because threads write too
        sys.stderr.flush()

    return nullcontext() if form == "text" else notes_to(put)


class _JsonFormatter(logging.Formatter):
    """Writes each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return _line(datetime.fromtimestamp(record.created, timezone.utc), record.levelname.lower(), record.name, text)


def _line(time: datetime, level: str, source: str, text: str) -> str:
    shown = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": shown, "level": level, "source": source, "message": text}, separators=(",", ":"))
