"""Test the memory of a request outside the model: what is held, what is refused, and what waits."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

import pytest

from edgedec.runtime.engine.ledger import MemoryLedger
from edgedec.runtime.server import request_memory, streaming
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.json_body import parse_json
from edgedec.runtime.server.memory import ServerMemory
from edgedec.runtime.server.request_memory import REQUEST_MEMORY, RequestMemory, ids_bytes, text_bytes
from tests.runtime.server.support.check_growth import growth_of_a_check
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.serving import Served, serving
from tests.runtime.server.test_service import PATIENCE_S, run, running, until

BUDGET = 1 << 20


@pytest.fixture
def memory() -> ServerMemory:
    server = ServerMemory()
    server.ledger = MemoryLedger(BUDGET)
    return server


def test_what_a_request_holds_is_given_back_at_its_end(memory: ServerMemory) -> None:
    async def test() -> None:
        with RequestMemory(memory) as request:
            request.hold_body(20_000)
            request.hold_body(30_000)  # in place of the first
            request.hold_values(2_000, escapes=0)
            await request.hold(5_000, "the text")
            with await request.converting(7_000):
                assert memory.ledger.charged_bytes == request.nbytes == 4 * 30_000 + 80 * 2_000 + 12_000
            assert memory.ledger.charged_bytes == 4 * 30_000 + 80 * 2_000 + 5_000
        assert memory.ledger.charged_bytes == 0

    asyncio.run(test())


def test_small_bodies_are_those_of_their_connections(memory: ServerMemory) -> None:
    with RequestMemory(memory) as request:
        request.hold_body(16 << 10)
        request.hold_values(1_000, escapes=0)
        assert memory.ledger.charged_bytes == 0


@pytest.mark.parametrize("part", ["body", "values", "text"])
def test_what_never_has_room_is_refused_with_figures(memory: ServerMemory, part: str) -> None:
    async def test() -> None:
        with RequestMemory(memory) as request:
            request.hold_body(100_000)  # its own bytes are never free for it
            if part == "body":
                request.hold_body(BUDGET)
            elif part == "values":
                request.hold_values(BUDGET // 80 - 4_000, escapes=0)
            else:
                await request.hold(BUDGET - 300_000, "the text")

    with pytest.raises(ApiError, match=r"is too large for the memory budget: .*needs .*KiB|MiB") as refused:
        asyncio.run(test())
    assert refused.value.status_code == 413
    assert "--memory-budget" in refused.value.message
    assert memory.ledger.charged_bytes == 0


def test_a_text_waits_while_others_are_written(memory: ServerMemory) -> None:
    async def test() -> None:
        with RequestMemory(memory) as other, RequestMemory(memory) as request:
            await other.hold(BUDGET - 1_000, "the text")
            memory.writes = lambda: True
            waiting = asyncio.create_task(request.hold(10_000, "the text"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            other.__exit__(None, None, None)
            await waiting
            assert memory.ledger.charged_bytes == 10_000

    asyncio.run(test())


@pytest.mark.parametrize("shut", [False, True])
def test_a_text_does_not_wait_for_ever(memory: ServerMemory, shut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_memory, "_PATIENCE_S", 0.03)

    async def test() -> None:
        with RequestMemory(memory) as other, RequestMemory(memory) as request:
            await other.hold(BUDGET - 1_000, "the text")
            if shut:
                memory.writes = lambda: True
                memory.ledger.shut()
            await request.hold(10_000, "the text")

    with pytest.raises(ApiError) as refused:
        asyncio.run(test())
    assert refused.value.status_code == 429
    assert int((refused.value.headers or {})["Retry-After"]) == (memory.retry_seconds if shut else 1)


def test_a_small_part_waits_for_the_floor_while_memory_is_short() -> None:
    """The floor is held by other small requests, whose texts are written."""
    memory = ServerMemory()
    memory.ledger, memory.writes = MemoryLedger(BUDGET, floor_bytes=20_000), lambda: True
    memory.ledger.shut()

    async def test() -> None:
        with RequestMemory(memory) as other, RequestMemory(memory) as request:
            await other.hold(19_000, "the text")
            waiting = asyncio.create_task(request.hold(2_000, "the text"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            other.__exit__(None, None, None)
            await waiting

    asyncio.run(test())


def test_requests_that_wait_for_each_other_end_but_the_first(
    memory: ServerMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_memory, "_BRIEF_S", 0.03)

    async def test() -> None:
        first, second = RequestMemory(memory), RequestMemory(memory)
        for one in (first, second):
            await one.hold(BUDGET // 4, "the body")
        waits = [asyncio.create_task(one.hold(BUDGET * 5 // 8, "the text")) for one in (first, second)]
        with pytest.raises(ApiError, match="memory is short"):
            await waits[1]
        assert not waits[0].done()
        second.__exit__(None, None, None)
        await waits[0]
        assert memory.ledger.charged_bytes == first.nbytes == BUDGET // 4 + BUDGET * 5 // 8
        assert not memory.waiting
        first.__exit__(None, None, None)

    asyncio.run(test())


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["conversion", "grammar"])
def test_memory_is_held_until_the_thread_has_ended_if_the_client_leaves(kind: str) -> None:
    text, begun, end = "a" * 10_000, threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        end.wait(PATIENCE_S)

    async def test() -> None:
        session = ScriptedSession(budget_bytes=100 << 20)
        async with running(lambda: session.real) as service:
            ledger = service.memory.ledger
            before = ledger.charged_bytes

            async def ask() -> None:
                with RequestMemory(service.memory) as request:
                    REQUEST_MEMORY.set(request)
                    await request.hold(1_000, "the messages")
                    if kind == "grammar":
                        await service.side_work.make_grammar(lambda _: work())
                    else:
                        await service.side_work.convert(text_bytes(text), work)

            task = asyncio.create_task(ask())
            await asyncio.to_thread(begun.wait, PATIENCE_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ledger.charged_bytes == before + 1_000 + (0 if kind == "grammar" else text_bytes(text))
            end.set()
            await until(lambda: ledger.charged_bytes == before)

    run(test())


def test_no_work_begins_while_a_text_waits_for_the_end_of_some(
    memory: ServerMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_memory, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(ServerMemory, "ends_something", False)  # so that it does not wait
    memory.text_waits_for_work = True

    async def test() -> None:
        with RequestMemory(memory) as request:
            await request.hold(1_000, "the messages")  # it belongs to no work
            await request.converting(1_000)

    with pytest.raises(ApiError, match="waits until a text that needs much memory has begun") as refused:
        asyncio.run(test())
    assert refused.value.status_code == 429
    assert memory.ledger.charged_bytes == 0


def counted(memory: ServerMemory, body: bytes) -> RequestMemory:
    """Return the memory of a request with a body whose values were counted."""
    request = RequestMemory(memory)
    token = REQUEST_MEMORY.set(request)
    try:
        request.body_bytes = len(body)
        parse_json(body)
    finally:
        REQUEST_MEMORY.reset(token)
    return request


def test_the_check_of_a_small_body_is_not_charged() -> None:
    assert counted(ServerMemory(), b'{"grammar": "' + b"a" * 4000 + b'"}').check_bytes == 0
    assert counted(ServerMemory(), b'{"grammar": "' + b"a" * 5000 + b'"}').check_bytes > 5000


@pytest.mark.parametrize("backslash", [rb"\\", rb"\u005c", rb"\u005C"])
def test_a_class_of_characters_is_charged_however_it_is_written(backslash: bytes) -> None:
    classes = [counted(ServerMemory(), b'{"regex": "' + (backslash + b"w") * n + b'"}') for n in (2000, 4000)]
    assert [request.body_escapes for request in classes] == [2000, 4000]
    assert classes[1].check_bytes - classes[0].check_bytes > 2000 * 7000


@pytest.mark.nightly(sample=4)
@pytest.mark.thorough(sample=1)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", {"type": "object", "properties": {f"a{at}": {} for at in range(900)}}),
        ("json_schema", {"prefixItems": [{"properties": {f"{c}{at}": {} for at in range(999)}} for c in "ab"]}),
        ("json_schema", {"type": "array", "prefixItems": [True] * 18_000}),
        ("json_schema", {"enum": [[]] * 19_000}),
        ("json_schema", {"properties": {f"a{at}": {"oneOf": [{"properties": {"b": {}}}] * 8} for at in range(200)}}),
        ("choice", [f"{at:x}" for at in range(20_000)]),
        ("grammar", "start: " + " | ".join(f"/{at}/" for at in range(20_000))),
        ("grammar", "start: " + " ".join(f'"{at}"?' for at in range(20_000))),
        ("regex", "|".join([r"\w"] * 20_000)),
    ],
)
def test_a_check_takes_no_more_than_is_charged(kind: str, source: Any) -> None:
    request = counted(ServerMemory(), json.dumps({kind: source}).encode())
    assert 0 < growth_of_a_check(kind, source) <= request.check_bytes


def test_a_check_waits_for_memory_while_texts_are_written(memory: ServerMemory) -> None:
    """It is tried again until there is room, and holds no thread meanwhile."""
    memory.writes = lambda: True
    tried = list[int]()

    async def test() -> None:
        request = counted(memory, b'{"grammar": "' + b"a" * 5000 + b'"}')
        memory.ledger = MemoryLedger(request.check_bytes)
        with RequestMemory(memory) as other:
            await other.hold(1000, "the text")

            async def check() -> str:
                tried.append(memory.ledger.charged_bytes)
                if len(tried) == 3:
                    other.__exit__(None, None, None)
                with request.checking():
                    assert memory.ledger.charged_bytes == request.check_bytes
                return "checked"

            assert await request.when_free(check) == "checked"
        assert memory.ledger.charged_bytes == 0

    asyncio.run(test())
    assert tried == [1000, 1000, 1000]


@pytest.mark.thorough
def test_a_grammar_whose_check_never_has_room_is_refused() -> None:
    session = ScriptedSession(budget_bytes=1 << 20)
    with serving(lambda: session.real) as server:
        schema = {"enum": [f"value {at}" for at in range(2000)]}
        response = server.complete(json_schema=schema, max_tokens=1)
        assert response.status_code == 413
        assert response.json()["error"]["message"].startswith("the check of the grammar is too large for the memory")
        assert server.complete(json_schema={"type": "boolean"}, max_tokens=1).status_code == 200
        assert server.complete(max_tokens=1).status_code == 200


def test_the_bytes_of_a_text_are_those_of_utf_8() -> None:
    assert text_bytes("é") == 2 * text_bytes("e")
    assert text_bytes("") == 0
    assert ids_bytes(3) == 3 * ids_bytes(1)


@pytest.mark.parametrize("logprobs", [{}, {"logprobs": True, "top_logprobs": 3, "n": 2}])
def test_an_answer_that_is_made_in_parts_is_the_same(
    served: Served, logprobs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer() -> Any:
        content = served.chat("Tell me a story.", max_tokens=8, temperature=0, **logprobs).json()
        return [[one["message"], one["logprobs"]] for one in content["choices"]] + [content["usage"]["total_tokens"]]

    whole = answer()
    monkeypatch.setattr(streaming, "_LARGE_BYTES", 0)
    assert answer() == whole
