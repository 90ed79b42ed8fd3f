"""Test the log of requests: what a line tells, what it never tells, and that nobody waits for its reader."""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from edgedec import demo
from edgedec.errors import EdgedecError
from edgedec.runtime.server import request_log
from edgedec.runtime.server.request_log import LogFormat, RequestLog, RequestRecord
from edgedec.runtime.session.session import Session
from tests.runtime.server.conftest import open_demo
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.serving import Served, serving

KEY = "key-of-anna"
PATIENCE_S = 30.0


class Lines:
    """The reading end of a log. A line that never comes fails the test."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._seen = descriptor, b""

    def next(self) -> str:
        """Return the next line with its end, or what is left at the end of the log."""
        while b"\n" not in self._seen:
            ready, _, _ = select.select([self._descriptor], [], [], PATIENCE_S)
            assert ready, f"no line came, but {self._seen!r}"
            read = os.read(self._descriptor, 1 << 16)
            if not read:
                break
            self._seen += read
        line, end, self._seen = self._seen.partition(b"\n")
        return (line + end).decode("ascii")

    def next_json(self) -> dict[str, Any]:
        return dict(json.loads(self.next()))

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def logging_server(form: LogFormat = "json", **options: Any) -> Iterator[tuple[Served, Lines]]:
    reading, writing = os.pipe()
    lines = Lines(reading)
    options.setdefault("open_session", lambda: ScriptedSession().real)
    try:
        with RequestLog(writing, form) as log, serving(log=log, **options) as served:
            yield served, lines
    finally:
        os.close(writing)
        lines.close()


@pytest.fixture(scope="module")
def logged() -> Iterator[tuple[Served, Lines]]:
    """Return a server with the embedded model, and its log in JSON."""
    with logging_server(open_session=open_demo, api_keys=(KEY,)) as pair:
        pair[0].client.headers["Authorization"] = f"Bearer {KEY}"
        yield pair


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_has_the_counts_of_the_answer(logged: tuple[Served, Lines], stream: bool) -> None:
    served, lines = logged
    if stream:
        *_, last = served.events(
            "/v1/completions", prompt="Once", max_tokens=7, n=2, stream_options={"include_usage": True}
        )
        usage = last["usage"]
    else:
        usage = served.complete("Once", max_tokens=7, n=2).json()["usage"]
    line = lines.next_json()
    assert usage["completion_tokens"] > 0
    assert (line["prompt_tokens"], line["tokens_written"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert (line["client"], line["method"], line["path"], line["status"]) == (
        "127.0.0.1",
        "POST",
        "/v1/completions",
        200,
    )
    assert (line["error"], line["cancelled"]) == (None, False)
    assert line["milliseconds"] > 0


@pytest.mark.thorough
def test_a_line_has_the_counts_of_all_embeddings() -> None:
    def open_session() -> Session:
        return Session.open(demo.bundle_path(), threads=1, ctx_size=64, embeddings=True)

    with logging_server(open_session=open_session) as (served, lines):
        usage = served.post("/v1/embeddings", input=["Once", "A cat.", "The end."]).json()["usage"]
        line = lines.next_json()
    assert usage["prompt_tokens"] > 3
    assert (line["prompt_tokens"], line["tokens_written"]) == (usage["prompt_tokens"], 0)


def test_other_requests_have_no_counts(logged: tuple[Served, Lines]) -> None:
    served, lines = logged
    served.client.get("/v1/models")
    line = lines.next_json()
    assert (line["path"], line["status"], line["prompt_tokens"], line["tokens_written"]) == (
        "/v1/models",
        200,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "error"),
    [
        ("GET", "/v1/models", {"headers": {"Authorization": "Bearer wrong"}}, 401, "invalid_api_key"),
        ("POST", "/v1/completions", {"json": {"prompt": "x " * 2000}}, 400, "context_length_exceeded"),
        ("POST", "/v1/completions", {"content": b"{"}, 415, "unsupported_media_type"),
        ("POST", "/v1/completions", {"json": {"prompt": "x", "nonsense": 1}}, 400, None),
        ("GET", "/nowhere", {}, 404, None),
        ("OPTIONS", "*", {"headers": {"Host": "strange.example"}}, 403, "host_not_allowed"),
    ],
)
def test_errors_are_named(
    logged: tuple[Served, Lines], method: str, path: str, options: dict[str, Any], status: int, error: str | None
) -> None:
    served, lines = logged
    if path == "*":
        connection = http.client.HTTPConnection("127.0.0.1", served.port)
        connection.request(method, path, headers=options["headers"])
        answer = connection.getresponse()
        body, code = answer.read(), answer.status
        connection.close()
    else:
        response = served.client.request(method, path, **options)
        body, code = response.content, response.status_code
    line = lines.next_json()
    assert (line["status"], code, line["method"], line["path"]) == (status, status, method, path)
    assert line["error"] == json.loads(body)["error"]["code"]
    assert error is None or line["error"] == error


def test_texts_keys_and_queries_are_in_no_line(logged: tuple[Served, Lines]) -> None:
    served, lines = logged
    secret = "plum-pudding"
    served.chat(f"{secret} {KEY}", max_tokens=2, user=secret)
    served.client.get(f"/v1/models?api_key={KEY}&{secret}", headers={"X-Api-Key": secret})
    served.post("/v1/completions", prompt=5, api_key=secret, **{secret: KEY})
    connection = http.client.HTTPConnection("127.0.0.1", served.port)
    connection.request("GET", f"http://{secret}:{KEY}@localhost/v1/models?{secret}")
    connection.getresponse().read()
    connection.close()
    read = [lines.next() for _ in range(4)]
    assert [json.loads(line)["path"] for line in read][-1] == "/v1/models"
    assert not [line for line in read if secret in line or KEY in line]


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_request_cannot_forge_a_line(form: LogFormat) -> None:
    paths = ["/x%0A127.0.0.1 GET / 200", "/%1b[31mred", "/caf%C3%A9%E2%80%AE%FF", "/" + "%0A" * 300, "/a b"]
    with logging_server(form) as (served, lines):
        for path in paths:
            with socket.create_connection(("127.0.0.1", served.port)) as sock:
                head = f"GET {path.replace(' ', '%20')} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                sock.sendall(head.encode())
                assert sock.makefile("rb").read().startswith(b"HTTP/1.1 404")
        with socket.create_connection(("127.0.0.1", served.port)) as sock:
            sock.sendall(b"X" * 300 + b" / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert sock.makefile("rb").read().startswith(b"HTTP/1.1 405")
        read = [lines.next() for _ in (*paths, "method")]
    for line in read:
        assert line.isascii()
        assert line.rstrip("\n").isprintable()
        assert len(line) < 500
        assert (json.loads(line)["client"] if form == "json" else line.split()[1]) == "127.0.0.1"
    assert "/x%0A127.0.0.1%20GET%20/%20200" in read[0]
    assert "X" * 20 + "..." in read[-1]


@pytest.mark.thorough
def test_a_line_of_text_has_its_parts_in_order() -> None:
    with logging_server("text") as (served, lines):
        served.complete("a b c", max_tokens=2)
        served.client.get("/nowhere")
        answered, missing = lines.next(), lines.next()
    words = answered.split(" ")
    assert words[0].endswith("Z")
    assert words[1:5] == ["127.0.0.1", "POST", "/v1/completions", "200"]
    assert float(words[5]) >= 0
    assert answered.endswith(" ms, 3 prompt tokens, 2 written\n")
    assert " GET /nowhere 404 " in missing
    assert missing.endswith(" ms\n")


@pytest.mark.thorough
def test_health_is_logged_where_it_is_news() -> None:
    script = ScriptedSession()
    opening = threading.Event()

    def open_session() -> Session:
        opening.wait(30)
        return script.real

    with logging_server(open_session=open_session, await_load=False) as (served, lines):
        served.client.get("/health")
        opening.set()
        served.service.loaded.result(30)
        served.client.get("/health")
        served.client.get("/v1/models")
        loading, models = lines.next_json(), lines.next_json()
    assert (loading["path"], loading["status"]) == ("/health", 503)
    assert models["path"] == "/v1/models"


@pytest.mark.thorough
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_told(stream: bool) -> None:
    script = ScriptedSession(steps=3)
    with logging_server(open_session=lambda: script.real, ping_seconds=0.02) as (served, lines):
        body = json.dumps({"prompt": "a b", "max_tokens": 9, "stream": stream}).encode()
        with socket.create_connection(("127.0.0.1", served.port)) as sock:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            sock.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            assert script.began.wait(30)
            if stream:
                assert sock.recv(1)
        line = lines.next_json()
    assert (line["cancelled"], line["error"], line["prompt_tokens"]) == (True, None, 2)
    assert 0 <= line["tokens_written"] <= 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("failure", "error"), [(EdgedecError("the board is gone"), "failed"), (ValueError("a bug"), "failed")]
)
def test_a_stream_that_fails_after_its_status_is_told(failure: Exception, error: str) -> None:
    script = ScriptedSession(steps=3)
    with logging_server(open_session=lambda: script.real) as (served, lines):
        with served.client.stream(
            "POST", "/v1/completions", json={"prompt": "a", "max_tokens": 5, "stream": True}
        ) as response:
            texts = response.iter_lines()
            assert next(texts).startswith("data: ")
            script.failure = failure
            script.steps.release(9)
            assert "error" in "".join(texts)
        line = lines.next_json()
    assert (line["status"], line["error"], line["cancelled"]) == (200, error, False)


def record(path: str = "/v1/models") -> RequestRecord:
    made = RequestRecord.begun({"type": "http", "method": "GET", "path": path, "client": ("::1", 5)})
    made.status = 200
    return made


@pytest.mark.parametrize("blocking", [True, False])
def test_nobody_waits_for_the_reader_of_the_log(monkeypatch: pytest.MonkeyPatch, blocking: bool) -> None:
    """A program that starts a server and reads only its first line must not stop it.

    Whoever shares stderr may have made it non-blocking; no line is lost uncounted then, and none is cut.
    """
    monkeypatch.setattr(request_log, "_PATIENCE_S", 30)
    reading, writing = os.pipe()
    os.set_blocking(writing, blocking)
    lines, sent = Lines(reading), 4000  # more than the pipe and the waiting lines hold
    got: list[dict[str, Any]] = []

    def read() -> None:
        while line := lines.next():
            got.append(json.loads(line))

    reader = threading.Thread(target=read)
    with RequestLog(writing, "json") as log:
        for _ in range(sent):
            log.write(record())
        reader.start()
    os.close(writing)
    reader.join()
    lines.close()
    lost = [line["lost_lines"] for line in got if "lost_lines" in line]
    assert sum(lost) > 0
    assert sum(lost) + len(got) - len(lost) == sent


def test_a_reader_who_never_reads_does_not_keep_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_PATIENCE_S", 0.01)
    reading, writing = os.pipe()
    with RequestLog(writing, "json") as log:
        for _ in range(4000):
            log.write(record())
    os.close(reading)  # ends the thread
    os.close(writing)


@pytest.mark.parametrize("gone", ["reader", "file"])
def test_a_log_that_cannot_be_written_ends_nothing(gone: str) -> None:
    reading, writing = os.pipe()
    with RequestLog(writing) as log:
        os.close(reading if gone == "reader" else writing)
        for _ in range(3):
            log.write(record())
    os.close(writing if gone == "reader" else reading)


def test_without_requests_there_is_no_thread() -> None:
    with RequestLog(2) as log:
        health = record("/health")
        log.write(health)
        assert log._thread is None


def test_a_record_without_an_address() -> None:
    made = RequestRecord.begun({"type": "http", "method": "GET", "path": "/", "client": None})
    line = made.line("text")
    assert " - GET / - " in line
    assert line.endswith(" ms, cancelled\n")


def test_texts_that_nobody_submitted_are_not_counted() -> None:
    made = record()
    assert made.submissions == []
    assert made.values()["tokens_written"] is None
