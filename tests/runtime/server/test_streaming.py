"""Test streams: pings, failures before and after the first byte, and clients that close their connection."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from edgedec.errors import DeviceError, UsageError
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.serving import Served

PATIENCE_S = 20.0
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 40}


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.001)


def idle(served: Served) -> bool:
    return not (served.service.running or served.service.waiting or served.gate.active)


def test_a_long_prompt_is_bridged_by_pings(pinging: Served, script: ScriptedSession) -> None:
    with pinging.client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
        assert next(lines) == ""
        assert [next(lines) for _ in range(4)] == [": ping", "", ": ping", ""]
        script.steps.release(100)
        rest = [line for line in lines if line and line != ": ping"]
    assert len(rest) == 40 + 2  # tokens, the finish, [DONE]
    assert rest[-1] == "data: [DONE]"


@pytest.mark.parametrize("stream", [False, True])
def test_only_an_answer_that_is_no_stream_is_read_at_its_end(
    controlled: Served, script: ScriptedSession, stream: bool
) -> None:
    script.steps.release(100)
    assert controlled.post("/v1/chat/completions", **BODY, stream=stream).status_code == 200
    assert script.texts[-1].whole is not stream


@pytest.mark.parametrize(
    ("failure", "status", "message"),
    [
        (DeviceError("no board"), 500, "no board"),
        (UsageError("logit_bias forbids every token"), 400, "logit_bias forbids every token"),
        (KeyError("x"), 500, "an unexpected error, see the server's log"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_byte_has_its_status(
    controlled: Served, script: ScriptedSession, stream: bool, failure: Exception, status: int, message: str
) -> None:
    script.failure = failure
    script.steps.release(100)
    response = controlled.post("/v1/chat/completions", **BODY, stream=stream)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["type"] == ("invalid_request_error" if status == 400 else "server_error")
    assert error["message"] == message


@pytest.mark.parametrize("failure", [DeviceError("no board"), KeyError("x")])
def test_a_failure_within_a_stream_is_an_event_and_its_end(
    controlled: Served, script: ScriptedSession, failure: Exception
) -> None:
    script.steps.release(3)
    with controlled.client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        first = [json.loads(next(lines).removeprefix("data: ")) for _ in range(3)]
        assert [chunk["choices"][0]["delta"]["content"] for chunk in first] == [None, "0.0 ", "0.1 "]
        script.failure = failure
        script.steps.release(100)
        rest = list(lines)
    assert len(rest) == 1
    assert json.loads(rest[0].removeprefix("data: "))["error"]["type"] == "server_error"
    assert controlled.chat(max_tokens=2).status_code == 200


def raw_request(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 4], ids=["in the prompt", "before the first token", "in the answer"])
def test_a_closed_connection_ends_the_answer(
    controlled: Served, script: ScriptedSession, stream: bool, steps: int
) -> None:
    if steps:
        script.steps.release(steps)
    with socket.create_connection(("127.0.0.1", controlled.port), timeout=PATIENCE_S) as sock:
        sock.sendall(raw_request("/v1/chat/completions", {**BODY, "stream": stream}))
        until(script.began.is_set)
        until(lambda: len(script.answers[0].tokens) == max(0, steps - 1))
        if stream and steps > 1:
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
    until(lambda: script.answers[0].stop_reason == "interrupted")
    until(lambda: idle(controlled))
    script.steps.release(100)
    assert controlled.chat(max_tokens=2).json()["choices"][0]["message"]["content"] == "0.0 0.1 "


def test_a_closed_connection_in_the_queue_leaves_the_queue_and_nobody_else_s_place(
    controlled: Served, script: ScriptedSession
) -> None:
    def send(body: dict[str, Any]) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", controlled.port), timeout=PATIENCE_S)
        sock.sendall(raw_request("/v1/chat/completions", body))
        return sock

    first = send({**BODY, "max_tokens": 3})
    until(script.began.is_set)
    second = send({**BODY, "stream": True})
    until(lambda: controlled.service.waiting == 1)
    third = send({**BODY, "max_tokens": 4})
    until(lambda: controlled.service.waiting == 2)
    full = controlled.chat(max_tokens=1)
    assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
    assert int(full.headers["retry-after"]) >= 1
    second.close()
    until(lambda: controlled.service.waiting == 1)
    script.steps.release(100)
    for sock, tokens in ((first, 3), (third, 4)):
        response = http.client.HTTPResponse(sock)
        response.begin()
        assert json.loads(response.read())["usage"]["completion_tokens"] == tokens
        sock.close()
    until(lambda: idle(controlled))
    assert len(script.answers) == 2


def test_draining_finishes_what_was_accepted_and_refuses_the_rest(pinging: Served, script: ScriptedSession) -> None:
    body = {**BODY, "max_tokens": 3, "stream": True}
    with pinging.client.stream("POST", "/v1/chat/completions", json=body) as response:
        pinging.gate.places.draining = True
        refused = httpx.post(f"{pinging.client.base_url}/v1/chat/completions", json=BODY, trust_env=False)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["connection"] == "close"
        assert httpx.get(f"{pinging.client.base_url}/health", trust_env=False).status_code == 503
        script.steps.release(100)
        assert list(response.iter_lines())[-2] == "data: [DONE]"
    until(lambda: not pinging.gate.active)
