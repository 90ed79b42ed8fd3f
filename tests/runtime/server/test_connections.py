"""Test connections that are slow, silent, half closed, many, or that send several requests at once."""

from __future__ import annotations

import json
import resource
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from edgedec.runtime.server import listener
from edgedec.runtime.server.app import create_app
from edgedec.runtime.server.listener import http_server, run_server
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.settings import ServerSettings
from edgedec.runtime.server.sockets import BACKLOG
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.serving import Served, serving
from tests.runtime.server.test_streaming import idle, until

pytestmark = pytest.mark.thorough

LIMIT = 8  # connections
HEAD_S, STALL_S = 0.3, 0.5
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def small(script: ScriptedSession) -> Iterator[Served]:
    """Return a server with few connections and little patience."""
    script.steps.release(1 << 20)
    with bounded(script) as server:
        yield server


def bounded(script: ScriptedSession) -> AbstractContextManager[Served]:
    times: Any = {"head_seconds": HEAD_S, "stall_seconds": STALL_S, "body_seconds": HEAD_S}
    return serving(lambda: script.real, connections=LIMIT, queue_limit=1024, **times)


def connect(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout=20)


def post(path: str, **body: object) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def everything(sock: socket.socket) -> bytes:
    """Return what arrives until the other side closes the connection."""
    try:
        return b"".join(iter(lambda: sock.recv(1 << 16), b""))
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(("files", "expected"), [(20, 5), (512, 128), (1 << 20, 320), (resource.RLIM_INFINITY, 320)])
def test_connections_leave_files_for_other_uses(monkeypatch: pytest.MonkeyPatch, files: int, expected: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (files, files))
    gate = create_app(ModelService(lambda: ScriptedSession().real), ServerSettings(model_name="m"))
    connection: Any = http_server(gate).config.http
    assert connection.keywords["limit"] == expected


@pytest.mark.skipif(sys.platform != "linux", reason="reads the queue of a socket as Linux tells it")
def test_the_system_holds_more_connections_than_are_accepted_at_once(small: Served) -> None:
    until(lambda: small._server.started)
    (sock,) = small._server.servers[0].sockets
    information = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
    (held,) = struct.unpack_from("I", information, 28)  # the largest queue, if the socket listens
    most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    assert held == min(BACKLOG, most)
    assert BACKLOG > 320  # the connections of a server that is full, and others


def test_a_thread_that_computes_lets_the_loop_run_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[float]()

    async def serve(*parts: object) -> None:
        found.append(sys.getswitchinterval())

    usual = sys.getswitchinterval()
    monkeypatch.setattr(listener, "_serve", serve)
    run_server(cast(Any, None), cast(Any, None))
    assert found == [pytest.approx(0.002)]
    assert sys.getswitchinterval() == usual


@pytest.mark.parametrize("begun", [b"", b"GET", GET[:-2], GET + b"GET /he"])
def test_a_head_that_does_not_arrive_is_given_up(small: Served, begun: bytes) -> None:
    with connect(small) as sock:
        sock.sendall(begun)
        answer = everything(sock)
    if begun.startswith(GET):
        assert answer.startswith(b"HTTP/1.1 200 ")
    last = answer.rpartition(b"HTTP/1.1 ")[2]
    assert last.startswith(b"408 ") == bool(begun)


def test_a_head_that_arrives_slowly_is_given_up(small: Served) -> None:
    """Test that each further byte does not extend the time, as slow attacks of this kind rely on."""
    sent = 0
    with connect(small) as sock:
        try:
            for at in range(len(GET) - 1):
                sock.sendall(GET[at : at + 1])
                sent += 1
                time.sleep(0.05)
        except OSError:
            pass
    assert sent < len(GET) - 1


def test_silent_connections_keep_nobody_out(small: Served) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(small)) for _ in range(4 * LIMIT)]
        assert small.client.get("/v1/models").status_code == 200
        assert sum(everything(sock) == b"" for sock in silent) == len(silent)


def test_connections_with_requests_are_kept(script: ScriptedSession) -> None:
    with bounded(script) as served, ExitStack() as stack:
        busy = [stack.enter_context(connect(served)) for _ in range(LIMIT - 2)]
        for sock in busy:
            sock.sendall(post("/v1/completions", prompt="a", max_tokens=20))
        until(lambda: served.gate.active == len(busy))
        silent = [stack.enter_context(connect(served)) for _ in range(4 * LIMIT)]
        assert sum(everything(sock) == b"" for sock in silent) == len(silent)
        script.steps.release(1 << 20)
        for sock in busy:
            assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_does_not_read_is_given_up(small: Served) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", small.port))
        for _ in range(40_000):  # answers of 300 bytes and more that are never read
            try:
                sock.sendall(GET)
            except OSError:
                break
        until(lambda: not small.connections)
    assert small.client.get("/v1/models").status_code == 200


def test_a_stream_that_is_not_read_ends_its_answer(small: Served) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", small.port))
        sock.sendall(post("/v1/completions", prompt=["a"] * 64, max_tokens=50, n=16, stream=True))
        until(lambda: idle(small) and not small.connections)


def test_requests_in_one_packet_are_answered_in_their_order(small: Served) -> None:
    stream = post("/v1/completions", prompt="a", max_tokens=3, stream=True)
    with connect(small) as sock:
        sock.sendall(
            GET + stream + GET.replace(b"models", b"nothing") + GET.replace(b"Host", b"Connection: close\r\nHost")
        )
        answer = everything(sock)
    statuses = [part.split()[0] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"200", b"404", b"200"]
    assert answer.count(b"data: [DONE]") == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_closes_its_half_leaves(controlled: Served, script: ScriptedSession, stream: bool) -> None:
    with connect(controlled) as sock:
        sock.sendall(post("/v1/completions", prompt="a", max_tokens=5, stream=stream))
        assert script.began.wait(20)
        sock.shutdown(socket.SHUT_WR)
        assert everything(sock) == b""
    until(lambda: idle(controlled))
    assert script.answers[0].stop_reason == "interrupted"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 17) + b"\r\n\r\n",
        b"GET /v1/models\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/models HTTP/x\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64 + b"\r\n\r\n",  # TLS on a port without it
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
        b"Content-Length: 3\r\n\r\n{}",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: gzip\r\n\r\n{}",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}",
    ],
)
def test_what_is_no_http_is_refused(small: Served, request_bytes: bytes) -> None:
    with connect(small) as sock:
        with suppress(OSError):
            sock.sendall(request_bytes)
        answer = everything(sock)
    assert answer[:10] in (b"HTTP/1.1 4", b""), answer
    assert small.client.get("/v1/models").status_code == 200
    until(lambda: idle(small))


@pytest.mark.parametrize("method", [b"POST", b"GET"])
def test_two_lengths_hide_no_second_request(small: Served, method: bytes) -> None:
    body = b"0\r\n\r\n" + GET  # with the length of the body this is data, with chunks a second request
    head = (
        method
        + b" /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    )
    with connect(small) as sock:
        sock.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = everything(sock)
    assert answer.startswith(b"HTTP/1.1 4")
    assert answer.count(b"HTTP/1.1 200") == 0
