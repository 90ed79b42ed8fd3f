"""Test the memory of a request outside the model: what is held, what is refused, and what waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edgedec.runtime.engine.ledger import MemoryLedger
from edgedec.runtime.server import request_memory, streaming
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.memory import ServerMemory
from edgedec.runtime.server.request_memory import RequestMemory, ids_bytes, text_bytes
from tests.runtime.server.support.serving import Served

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
            request.hold_values(2_000)
            await request.hold(5_000, "the text")
            with await request.converting(7_000):
                assert memory.ledger.charged_bytes == request.nbytes == 4 * 30_000 + 80 * 2_000 + 12_000
            assert memory.ledger.charged_bytes == 4 * 30_000 + 80 * 2_000 + 5_000
        assert memory.ledger.charged_bytes == 0

    asyncio.run(test())


def test_small_bodies_are_those_of_their_connections(memory: ServerMemory) -> None:
    with RequestMemory(memory) as request:
        request.hold_body(16 << 10)
        request.hold_values(1_000)
        assert memory.ledger.charged_bytes == 0


@pytest.mark.parametrize("part", ["body", "values", "text"])
def test_what_never_has_room_is_refused_with_figures(memory: ServerMemory, part: str) -> None:
    async def test() -> None:
        with RequestMemory(memory) as request:
            request.hold_body(100_000)  # its own bytes are never free for it
            if part == "body":
                request.hold_body(BUDGET)
            elif part == "values":
                request.hold_values(BUDGET // 80 - 4_000)
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
