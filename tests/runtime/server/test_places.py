"""Test that requests without a key, and bodies that never come, keep nobody out."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.places import RequestPlaces
from edgedec.runtime.server.turns import CLIENT
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.serving import Served, serving
from tests.runtime.server.test_streaming import idle, until

KEY = "correct-horse-battery"
PLACES, CONNECTIONS = 4, 24
BODY = 20_000  # bytes; larger than a body that takes no memory of its own
INSPECTIONS = ("/metrics", "/slots", "/memory", "/props", "/v1/models")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server wait for refused bodies for longer than any test."""
    monkeypatch.setattr("edgedec.runtime.server.gate._DISCARDED_S", 60.0)


@pytest.fixture
def locked() -> Iterator[Served]:
    """Return a server with a key and few places."""
    with serving(
        lambda: ScriptedSession(budget_bytes=1_200_000).real,
        api_keys=(KEY,),
        requests=PLACES,
        connections=CONNECTIONS,
    ) as server:
        server.client.headers["Authorization"] = f"Bearer {KEY}"
        yield server


def connected(served: Served, stack: ExitStack, head: str) -> socket.socket:
    """Return a connection over which the head of a request was sent."""
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=20))
    sock.sendall(head.encode())
    return sock


def head(*, key: str = "", length: int = 100, host: str = "localhost", more: str = "") -> str:
    lines = [f"Host: {host}", "Content-Type: application/json", f"Content-Length: {length}"]
    lines += [f"X-Api-Key: {key}"] if key else []
    return "POST /v1/completions HTTP/1.1\r\n" + "".join(f"{line}\r\n" for line in lines) + more + "\r\n"


def answer(sock: socket.socket) -> tuple[int, dict[str, object]]:
    """Return the status and the error of an answer, whether or not the connection ends after it."""
    with sock.makefile("rb") as file:
        status, length = int(file.readline().split()[1]), 0
        while line := file.readline().strip().lower():
            name, _, value = line.partition(b":")
            length = int(value) if name == b"content-length" else length
        return status, json.loads(file.read(length))["error"]


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("key", "host", "expected"), [("", "localhost", 401), ("wrong", "localhost", 401), (KEY, "evil.example", 403)]
)
def test_a_refused_request_is_answered_before_its_body_arrives(
    locked: Served, waits: None, key: str, host: str, expected: int
) -> None:
    with ExitStack() as stack:
        sock = connected(locked, stack, head(key=key, host=host))
        assert answer(sock)[0] == expected
        assert locked.gate.active == 0


def test_requests_without_a_key_take_no_place(locked: Served, waits: None) -> None:
    with ExitStack() as stack:
        refused = [connected(locked, stack, head()) for _ in range(CONNECTIONS - 2)]
        for sock in refused:
            assert answer(sock)[0] == 401
        assert [locked.complete(max_tokens=1).status_code for _ in range(3)] == [200] * 3
        assert locked.client.get("/metrics").status_code == 200


@pytest.mark.thorough
def test_connections_of_refused_requests_make_room(locked: Served, waits: None) -> None:
    with ExitStack() as stack:
        for _ in range(2 * CONNECTIONS):
            sock = connected(locked, stack, head())
            assert answer(sock)[0] == 401
        assert locked.complete(max_tokens=1).status_code == 200
        assert locked.connections <= CONNECTIONS


@pytest.mark.thorough
def test_few_refused_bodies_are_read_at_a_time(locked: Served, waits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.runtime.server.gate._LINGERING", 2)
    with ExitStack() as stack:
        lingering = [connected(locked, stack, head()) for _ in range(2)]
        assert [answer(sock)[0] for sock in lingering] == [401] * 2
        further = connected(locked, stack, head())
        assert answer(further)[0] == 401
        assert further.recv(1) == b""


@pytest.mark.thorough
def test_a_client_that_asks_before_it_sends_is_not_waited_for(locked: Served, waits: None) -> None:
    with ExitStack() as stack:
        sock = connected(locked, stack, head(more="Expect: 100-continue\r\n"))
        assert answer(sock)[0] == 401
        assert sock.recv(1) == b""


def test_bodies_that_never_come_keep_nobody_out(locked: Served) -> None:
    with ExitStack() as stack:
        silent = [connected(locked, stack, head(key=KEY)) for _ in range(3 * PLACES)]
        until(lambda: locked.gate.active == PLACES)
        assert [locked.complete(max_tokens=1).status_code for _ in range(3)] == [200] * 3
        for sock in silent[: 2 * PLACES]:
            status, error = answer(sock)
            assert (status, error["code"]) == (408, "body_timeout")
    until(lambda: idle(locked))


@pytest.mark.thorough
def test_requests_that_are_answered_keep_their_places(script: ScriptedSession) -> None:
    with serving(lambda: script.real, requests=PLACES, queue_limit=64) as served, ExitStack() as stack:
        content = json.dumps({"prompt": "a", "max_tokens": 3}).encode()
        busy = [connected(served, stack, head(length=len(content))) for _ in range(PLACES)]
        for sock in busy:
            sock.sendall(content)
        until(lambda: served.service.running + served.service.waiting == PLACES)
        refused = served.complete(max_tokens=1)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_requests")
        assert {served.client.get(path).status_code for path in INSPECTIONS} == {200}
        script.steps.release(1 << 20)
        for sock in busy:
            assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


@pytest.mark.thorough
def test_requests_about_the_server_take_no_place_of_texts() -> None:
    with serving(lambda: ScriptedSession().real, inspections=0) as served:
        assert {served.client.get(path).status_code for path in INSPECTIONS} == {503}
        assert served.complete(max_tokens=1).status_code == 200
        assert served.client.get("/health").status_code == 200


@pytest.mark.thorough
def test_bodies_that_are_only_announced_take_no_memory(locked: Served) -> None:
    with ExitStack() as stack:
        announced = [connected(locked, stack, head(key=KEY, length=250_000)) for _ in range(PLACES - 1)]
        until(lambda: locked.gate.active == len(announced))
        refused = locked.complete(" " * BODY, max_tokens=1)  # it has memory, and is then too long for the context
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        until(lambda: not locked.service.memory.ledger.items().get("connections", 0))


@pytest.mark.thorough
def test_a_body_without_a_length_needs_memory_for_what_arrives(locked: Served) -> None:
    """Its bound is the server's for bodies, for which the budget has no room."""
    assert 4 * locked.gate.settings.body_bytes > 1_200_000
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json"}
    response = locked.client.post("/v1/completions", content=iter([body[:5], body[5:]]), headers=headers)
    assert response.status_code == 200, response.text


@pytest.mark.thorough
def test_a_body_has_memory_as_it_arrives(locked: Served) -> None:
    ledger = locked.service.memory.ledger
    with ExitStack() as stack:
        sock = connected(locked, stack, head(key=KEY, length=100_000))
        sock.sendall(b" " * 40_000)
        until(lambda: ledger.items().get("connections", 0) >= 4 * 40_000)
        assert ledger.items()["connections"] <= 4 * 80_000  # up to twice what has arrived
    until(lambda: idle(locked) and not ledger.items().get("connections", 0))


def test_a_body_may_take_less_time_the_more_are_on_their_way() -> None:
    async def times(bodies: int) -> float:
        places = RequestPlaces(requests=64, inspections=1, body_seconds=32.0)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            done = asyncio.Event()

            async def body(client: str) -> None:
                CLIENT.set(client)
                with places.take(inspects=False) as place:
                    async with place.arriving():
                        await done.wait()

            for at in range(bodies):
                group.create_task(body(f"client {at}"))
            while places.active < bodies:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            patience = places.patience_s
            done.set()
        assert not places.active
        return patience

    assert [asyncio.run(times(bodies)) for bodies in (1, 8, 16, 64)] == [32, 32, 16, 4]


def test_one_client_leaves_places_to_others() -> None:
    places = RequestPlaces(requests=16, inspections=1, body_seconds=60.0)
    CLIENT.set("a")
    taken = [places.take(inspects=False) for _ in range(14)]
    with pytest.raises(ApiError, match="answers 14 requests of this client already"):
        places.take(inspects=False)
    CLIENT.set("b")
    taken += [places.take(inspects=False) for _ in range(2)]
    with pytest.raises(ApiError, match="answers 16 requests already"):
        places.take(inspects=False)
    for place in taken:
        place.leave()
    assert (places.active, dict(places._of_client)) == (0, {})
    CLIENT.set("a")
    places.take(inspects=False).leave()


def test_the_oldest_body_loses_its_place() -> None:
    async def run() -> list[str]:
        places, ends, done = RequestPlaces(requests=2, inspections=1, body_seconds=60.0), list[str](), asyncio.Event()

        async def body(name: str) -> None:
            try:
                with places.take(inspects=False) as place:
                    async with place.arriving():
                        await done.wait()
                ends.append(f"{name} arrived")
            except TimeoutError:
                ends.append(f"{name} lost its place")
            except ApiError as error:
                ends.append(f"{name} {error.status_code}")

        tasks = [asyncio.create_task(body(name)) for name in "abcd"]
        await asyncio.sleep(0)
        while len(ends) < 2:
            await asyncio.sleep(0)
        assert places.active == 2
        done.set()
        await asyncio.gather(*tasks)
        with places.take(inspects=False), places.take(inspects=False), pytest.raises(ApiError, match="2 requests"):
            places.take(inspects=False)
        return ends

    assert asyncio.run(run()) == ["a lost its place", "b lost its place", "c arrived", "d arrived"]
