"""The log of requests: one line for each, which tells what was asked of the server and never what was said.

A line has the path without the query, in which clients may send keys, and no other part of a request. The answers never
wait for whoever reads the log: lines that find no room are counted, and the next line that does tells how many they were.
"""

from __future__ import annotations

import json
import os
import queue
import select
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

if TYPE_CHECKING:
    from starlette.types import Message, Scope, Send
    from typing_extensions import Self

    from edgedec.runtime.server.errors import ApiError
    from edgedec.runtime.server.submission import Submission

__all__ = ["LOG_FORMATS", "LogFormat", "RequestLog", "RequestRecord", "json_line", "request_record"]

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("text", "json")
_KEY = "edgedec.record"  # member of an ASGI scope
_HEALTH = frozenset(["/health", "/v1/health"])  # asked every few seconds, so only another answer than 200 is logged
_FAILED = "failed"  # name of an error that has none
_PLAIN = "/:@!$&'()*+,;=-._~"  # characters of a path that are not written as %XX, besides letters and digits
_PATH_CHARACTERS, _METHOD_CHARACTERS = 200, 20  # maximum lengths in a line
_LINES = 1024  # lines that wait for the reader of the log
_PATIENCE_S = 1.0  # seconds for which the end of the server waits for the reader


@dataclass(kw_only=True)
class RequestRecord:
    """The facts about a request that its line has.

    Members:
        client: the client's address; None if the connection has none.
        method, path: method, and path without the query, both in ASCII.
        status: the status of the answer; None: none was sent, because the client left.
        code: the name of the error, for programs; None without an error.
        submissions: the texts that were asked for.
    """

    client: str | None
    method: str
    path: str
    status: int | None = None
    code: str | None = None
    submissions: list[Submission] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    @classmethod
    def begun(cls, scope: Scope) -> RequestRecord:
        """Return the record of a request, which ``request_record`` finds in ``scope`` from now on."""
        client = scope.get("client")
        record = cls(
            client=None if client is None else str(client[0]),
            method=_shown(scope["method"], _METHOD_CHARACTERS),
            path=_shown(scope["path"], _PATH_CHARACTERS),
        )
        scope[_KEY] = record
        return record

    def watched(self, send: Send) -> Send:
        """Return a function that sends an answer and keeps its status."""

        async def watched_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
            await send(message)

        return watched_send

    def refused(self, error: ApiError) -> None:
        """Keep the name of the error with which the request is answered."""
        self.code = error.error["code"]

    @property
    def quiet(self) -> bool:
        """True if the request says nothing new: somebody watches the server, and it is well."""
        return self.method == "GET" and self.path in _HEALTH and self.status == 200

    def values(self) -> dict[str, str | int | float | bool | None]:
        """Return the values of a line, with the time from the request's head until now."""
        turns = [turn for texts in self.submissions for turn in texts.turns]
        failed = any(texts.error is not None for texts in self.submissions)
        return {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "client": self.client,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "milliseconds": round(1000 * (time.monotonic() - self._began), 1),
            "prompt_tokens": sum(len(turn.request.prompt) for turn in turns if not turn.request.text.sample)
            if turns
            else None,
            "tokens_written": sum(turn.written for turn in turns) if turns else None,
            "error": self.code or (_FAILED if failed else None),
            "cancelled": self.status is None or (any(texts.cancelled for texts in self.submissions) and not failed),
        }

    def line(self, form: LogFormat) -> str:
        """Return the line, with its end.

        As text: time, client, method, path, status (``-``: none), duration, and where there are any the tokens of the
        prompts and of the answers, the name of the error, and that the answer was cancelled: usually its client left.
        """
        values = self.values()
        if form == "json":
            return json_line(values)
        head = [values[name] for name in ("time", "client", "method", "path", "status")]
        words = [" ".join("-" if value is None else str(value) for value in head) + f" {values['milliseconds']} ms"]
        if values["tokens_written"] is not None:
            words.append(f"{values['prompt_tokens']} prompt tokens, {values['tokens_written']} written")
        if values["error"] is not None:
            words.append(str(values["error"]))
        if values["cancelled"]:
            words.append("cancelled")
        return ", ".join(words) + "\n"


def request_record(scope: Scope) -> RequestRecord:
    """Return the record of a request that the gate let through."""
    record: RequestRecord = scope[_KEY]
    return record


def json_line(values: dict[str, str | int | float | bool | None]) -> str:
    """Return values as one line of JSON, in ASCII, so that no text in them can end the line."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False) + "\n"


def _shown(text: str, limit: int) -> str:
    """Return a text of a client in ASCII without blanks and control characters, cut where it is long."""
    shown = quote(text[: limit + 1], safe=_PLAIN, errors="replace")
    return shown if len(text) <= limit and len(shown) <= limit else f"{shown[:limit]}..."


class RequestLog:
    """Writes lines to a file descriptor in a thread of its own, which begins with the first line.

    Use it as a context manager, which waits a moment for the last lines.

    Parameters:
        descriptor: open file, such as that of stderr. It is not closed.
        form: form of the lines.
    """

    def __init__(self, descriptor: int, form: LogFormat = "text") -> None:
        self._descriptor, self.form = descriptor, form
        self._lines: queue.Queue[str | None] = queue.Queue(_LINES)
        self._lost = 0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            with suppress(queue.Full):
                if self._lost:
                    self._lines.put(self._told_lost(), timeout=_PATIENCE_S)
                self._lines.put(None, timeout=_PATIENCE_S)
                self._thread.join(_PATIENCE_S)

    def write(self, record: RequestRecord) -> None:
        """Write the line of a request that has ended. This never waits; it is called in the thread of the loop."""
        if record.quiet:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="edgedec-log", daemon=True)
            self._thread.start()
        if self._lost and self._put(self._told_lost()):
            self._lost = 0
        self._lost += not self._put(record.line(self.form))

    def _put(self, line: str) -> bool:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            return False
        return True

    def _told_lost(self) -> str:
        if self.form == "json":
            return json_line({"lost_lines": self._lost})
        return f"{self._lost} requests are missing here, because the log was not read in time\n"

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            _write_all(self._descriptor, line.encode("ascii"))


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``; an error, such as that of a reader who is gone, must not end the server.

    Whoever shares the open file may have made it non-blocking; the log's thread waits for its reader in any case.
    """
    try:
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                select.select([], [descriptor], [])
    except OSError:
        return
