"""Test the server's ledger: requests begin when their worst case fits, give it back however they end, and pressure frees."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from edgedec.errors import DeviceError, UsageError
from edgedec.memory.budget import MemoryLimit
from edgedec.memory.pressure import Stalls
from edgedec.runtime.engine.ledger import AdmissionError, MemoryLedger, Reclaimer, Reservation
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.lexer import MOST_LEXER_BYTES
from edgedec.runtime.grammar.tools import tool_grammar
from edgedec.runtime.sampling.logprobs import TokenLogprobs
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.memory import WORK, ServerMemory, request_bytes
from edgedec.runtime.server.request_memory import RequestMemory
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.submission import QueuedText, TextPart, TextRequest, reported_bytes
from edgedec.runtime.server.turns import CLIENT
from edgedec.runtime.text_settings import TextSettings
from tests.runtime.server.support.fake_session import ScriptedMemory, ScriptedSession
from tests.runtime.server.support.serving import Served, serving
from tests.runtime.server.test_service import PATIENCE_S, read, run, running, until

ONE = request_bytes(prompt=2, answer=3)  # bytes of a request below


def request(n_predict: int = 3, grammar: Grammar | None = None) -> TextRequest:
    text = TextSettings(n_predict=n_predict, sampling=SamplingConfig(seed=1), grammar=grammar)
    return TextRequest(prompt=np.array([5, 6], np.int32), text=text)


def scripted(requests: float, sequences: int = 4) -> ScriptedSession:
    """Return a session without permits, whose budget has room for so many requests."""
    return ScriptedSession(steps=0, sequences=sequences, budget_bytes=900 + int(requests * ONE))


@pytest.mark.thorough
def test_a_request_begins_when_its_worst_case_fits() -> None:
    async def test() -> None:
        session = scripted(2.5)
        async with running(lambda: session.real) as service, service.text():
            submissions = [service.submit([request()]) for _ in range(3)]
            await until(lambda: service.running == 2)
            await asyncio.sleep(0.02)
            assert (service.running, service.waiting) == (2, 1)
            assert service.memory.ledger.items() == {"weights": 900, "requests": 2 * ONE}
            session.steps.release(1 << 16)
            for submission in submissions:
                assert len(await read(submission)) == 4
            await until(lambda: not service.running)
            assert service.memory.ledger.items() == {"weights": 900, "requests": 0}
            assert service.memory.ledger.peak_bytes == 900 + 2 * ONE

    run(test())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("most", "order"), [(2, ["first", "b0", "b1", "large", "b2"]), (32, ["first", "b0", "b1", "b2", "large"])]
)
def test_a_request_that_waits_for_memory_lets_some_of_others_pass(
    most: int, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedec.runtime.server.submission._MOST_PASSED", most)

    async def test() -> None:
        session = scripted(4.5)
        begun = list[str]()
        async with running(lambda: session.real) as service, service.text():
            texts: Any = service._texts
            begin = texts.begin

            def noted(turn: QueuedText) -> None:
                begun.append(turn.client)
                begin(turn)

            texts.begin = noted
            submissions = []
            for client, tokens in [("first", 3), ("large", 64), ("b0", 3), ("b1", 3), ("b2", 3)]:
                CLIENT.set(client)
                submissions.append(service.submit([request(tokens)]))
                if client == "first":
                    await until(lambda: service.running == 1)
            session.steps.release(1 << 16)
            for submission in submissions:
                await read(submission)
            assert begun == order

    run(test())


@pytest.mark.thorough
def test_a_grammar_that_is_compiled_takes_no_place_from_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two grammars are compiled, a text begins, and the model writes one text at a time all the same."""

    async def test() -> None:
        session = scripted(200, sequences=1)
        session.compiling.clear()
        grammar = Grammar.json_schema({"type": "boolean"})
        async with running(lambda: session.real) as service, service.text():
            texts: Any = service._texts
            report, most = texts._report, [0]

            def counted(*args: Any) -> None:
                most[0] = max(most[0], len(texts._running))
                report(*args)

            texts._report = counted
            CLIENT.set("a")
            compiled = [service.submit([request(grammar=grammar)]) for _ in range(2)]
            await until(lambda: service.running == 1 and texts._compiling)
            CLIENT.set("b")
            plain = service.submit([request()])
            await until(lambda: session.answers)
            session.compiling.set()
            await until(lambda: texts._compiling[0][1].done())
            session.steps.release(1 << 16)
            for submission in (plain, *compiled):
                assert len(await read(submission)) == 4
            assert most == [1]

    run(test())


@pytest.mark.thorough
def test_a_request_that_is_alone_is_admitted_even_if_its_worst_case_is_large() -> None:
    async def test() -> None:
        session = scripted(0.5)
        session.steps.release(1 << 16)
        async with running(lambda: session.real) as service, service.text():
            for _ in range(2):
                assert len(await read(service.submit([request()]))) == 4
            ledger = service.memory.ledger
            assert ledger.peak_bytes + ledger.floor_bytes == ledger.budget_bytes

    run(test())


@pytest.mark.thorough
def test_a_text_that_is_alone_waits_for_work_whose_memory_it_needs() -> None:
    """Work, such as the check of another request's grammar, ends by itself, and then there is room."""

    async def test() -> None:
        session = scripted(1.5)
        async with running(lambda: session.real) as service, service.text():
            work = service.memory.ledger.reserve(WORK, ONE)
            submission = service.submit([request()])
            await until(lambda: service.memory.text_waits_for_work)
            await asyncio.sleep(0.02)
            assert (service.running, service.waiting) == (0, 1)
            work.close()
            service.memory.wake()
            await until(lambda: service.running == 1)
            assert not service.memory.text_waits_for_work
            assert service.memory.ledger.items()["requests"] == ONE
            session.steps.release(1 << 16)
            assert len(await read(submission)) == 4

    run(test())


def test_a_large_reservation_needs_room_in_the_system_too() -> None:
    """The budget has room, but the control group would be full before the watch looks again."""
    used = [100 << 20]
    memory = ServerMemory(
        limits=lambda: [MemoryLimit(source="cgroup", name="memory.max", limit_bytes=256 << 20, used_bytes=used[0])]
    )
    memory.ledger = MemoryLedger(64 << 20)
    with memory.admit(12 << 20, alone=True) or pytest.fail("there is room"):
        pass
    used[0] = 240 << 20  # 16 MiB are left, of which 8 are the reserve
    memory._promised.clear()
    memory.watch._spare_until = 0.0  # a second later
    assert memory.admit(12 << 20, alone=False) is None  # it waits for others to end
    with pytest.raises(AdmissionError, match=r"needs 12.0 MiB, of which 0 B are free; try again"):
        memory.admit(12 << 20, alone=True)
    with pytest.raises(AdmissionError) as never:
        memory.admit(80 << 20, alone=False) or memory.reserve("work", 80 << 20)
    assert never.value.never  # whatever the system's room is
    assert memory.ledger.charged_bytes == 0
    assert memory.admit(ONE, alone=True) is not None  # small
    with RequestMemory(memory) as request, pytest.raises(ApiError) as refused:
        request.hold_body(3 << 20)
    assert (refused.value.status_code, refused.value.body["error"]["code"]) == (429, "memory_short")


def test_what_was_promised_and_not_yet_taken_counts() -> None:
    memory = ServerMemory(
        limits=lambda: [MemoryLimit(source="cgroup", name="memory.max", limit_bytes=256 << 20, used_bytes=228 << 20)]
    )
    memory.ledger = MemoryLedger(64 << 20)  # 28 MiB are left, of which 8 are the reserve
    assert memory.admit(12 << 20, alone=True) is not None
    assert memory.admit(12 << 20, alone=False) is None
    memory._promised.clear()  # a second later
    assert memory.admit(12 << 20, alone=False) is not None


def test_a_text_that_is_alone_lets_parts_give_memory_back_for_it() -> None:
    used, given = [240 << 20], list[str]()

    def give() -> None:
        given.append("cache")
        used[0] = 200 << 20

    memory = ServerMemory(
        limits=lambda: [MemoryLimit(source="cgroup", name="memory.max", limit_bytes=256 << 20, used_bytes=used[0])]
    )
    part = Reclaimer(name="cache", reclaimable=lambda: 0 if given else 40 << 20, reclaim=give)
    memory.ledger = MemoryLedger(64 << 20, reclaimers=[part])
    assert memory.admit(12 << 20, alone=True) is not None
    assert given == ["cache"]


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("end", ["cancelled while it waits", "cancelled", "failed"])
def test_memory_is_given_back_however_a_request_ends(end: str) -> None:
    async def test() -> None:
        session = scripted(1.5)
        async with running(lambda: session.real) as service, service.text():
            first, second = service.submit([request()]), service.submit([request()])
            await until(lambda: service.running == 1)
            if end == "cancelled while it waits":
                second.cancel()
            elif end == "cancelled":
                first.cancel()
                await until(lambda: len(session.answers) == 2)
                second.cancel()
            else:
                session.failure = DeviceError("the device is gone")
            session.steps.release(1 << 16)
            await until(lambda: not service.running and not service.waiting)
            assert service.memory.ledger.items() == {"weights": 900, "requests": 0}

    run(test())


def test_pressure_takes_one_part_after_another_from_an_idle_server() -> None:
    calls: list[str] = []

    class Memory(ScriptedMemory):
        idle_bytes, kept_bytes = 300, 200

        def release_idle(self) -> None:
            calls.append("release")
            self.idle_bytes = 0

        def move_to_disk(self) -> None:
            calls.append("move")
            self.kept_bytes = 0
            self.idle_bytes = 200

        def keep_prefixes(self, keep: bool) -> None:
            assert not keep

    async def test() -> None:
        session = ScriptedSession()
        session.memory = Memory()
        memory = ServerMemory(limits=lambda: ())  # the room is unknown, so the stalls count
        async with running(lambda: session.real, memory=memory) as service:
            watch, total = service.memory.watch, 0
            for second in range(30):
                total += 500_000
                watch.step(float(second), Stalls(some_percent=0, full_percent=0, some_us=total, full_us=0))
                if watch.high:
                    break
            await until(lambda: calls == ["release"])
            watch.step(second + 5.0, Stalls(some_percent=0, full_percent=0, some_us=total + 5_000_000, full_us=0))
            await until(lambda: calls == ["release", "move", "release"])
            assert not service.memory.pressed
            data = service.memory.as_json()
            assert [one["reclaimable_bytes"] for one in data["ledger"]["reclaimers"]] == [0, 0, 0, 0]
            assert data["pressure"]["high"]
        assert service.memory.ledger.charged_bytes == 0

    run(test())


class Machine:
    """A control group with a limit of 1,600 bytes, whose other programs leave ``room``."""

    def __init__(self, room: int) -> None:
        self.room = room

    def limits(self) -> list[MemoryLimit]:
        return [MemoryLimit(source="cgroup", name="a", limit_bytes=1600, used_bytes=1600 - self.room)]


class GivingMemory(ScriptedMemory):
    """Memory whose parts hold 60 bytes each, which go back to a machine, or are taken from it again."""

    idle_bytes, drafter_bytes, kept_bytes, parkable_bytes = 60, 60, 60, 60

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine, self.calls = machine, list[str]()

    def release_idle(self) -> None:
        if self.idle_bytes:
            self.calls.append("idle pools")
            self.machine.room += self.idle_bytes
        self.idle_bytes = 0

    def release_drafter(self) -> None:
        self.calls.append("drafter")
        self.machine.room += self.drafter_bytes
        self.drafter_bytes = 0

    def restore_drafter(self) -> None:
        self.calls.append("drafter again")

    def move_to_disk(self) -> None:
        if self.kept_bytes:
            self.calls.append("prompt cache")
            self.machine.room += self.kept_bytes
        self.kept_bytes = 0

    def park(self) -> None:
        self.calls.append("idle sequences")
        self.machine.room += self.parkable_bytes
        self.parkable_bytes, self.parked = 0, 1

    def unpark(self) -> None:
        self.calls.append("idle sequences again")
        self.parked = 0

    def keep_prefixes(self, keep: bool) -> None:
        self.calls += ["prompt cache again"] if keep else []


class Giving(ScriptedSession):
    """A session on a machine to which its memory goes back."""

    def __init__(self, machine: Machine, **options: Any) -> None:
        super().__init__(**options)
        self.machine, self.giving = machine, GivingMemory(machine)
        self.memory = self.giving

    @property
    def calls(self) -> list[str]:
        return self.giving.calls


def service_of(session: Giving) -> ModelService:
    """Return a service whose watch a test moves by hand."""
    memory = ServerMemory(limits=session.machine.limits)
    memory.watch.start = lambda: None  # type: ignore[method-assign]
    return ModelService(lambda: session.real, memory=memory)


def seconds(service: ModelService, begin: int, count: int) -> None:
    for second in range(begin, begin + count):
        service.memory.watch.measure_room()
        service.memory.watch.step(float(second), None)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("room", "calls"),
    [
        (100, []),
        (99, ["idle pools"]),
        (39, ["idle pools", "drafter"]),
        (0, ["idle pools", "drafter"]),
        (-20, ["idle pools", "drafter"]),
        (-21, ["idle pools", "drafter", "prompt cache"]),
        (-80, ["idle pools", "drafter", "prompt cache"]),
        (-81, ["idle pools", "drafter", "prompt cache", "idle sequences"]),
        (-500, ["idle pools", "drafter", "prompt cache", "idle sequences"]),
    ],
)
def test_parts_give_their_memory_in_order_until_there_is_room(room: int, calls: list[str]) -> None:
    async def test() -> None:
        session = Giving(Machine(room))
        service = service_of(session)
        service.start()
        try:
            await asyncio.wrap_future(service.loaded)
            seconds(service, 0, 1)
            await until(lambda: not service.memory.pressed and session.calls == calls)
            await until(lambda: service.memory.ledger.is_shut == (len(calls) == 4))
        finally:
            await asyncio.to_thread(service.close)

    run(test())


@pytest.mark.thorough
def test_large_requests_are_refused_while_nothing_is_left_and_small_ones_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.runtime.server.memory._SMALL_TOKENS", 3)
    monkeypatch.setattr("edgedec.runtime.server.memory._SMALL_PROGRAM", None)

    async def test() -> None:
        session = Giving(Machine(0), sequences=2)
        session.run.plan.phases["run"]["host"] = 1 << 20  # room for the floor, and no budget otherwise
        service = service_of(session)
        service.start()
        try:
            await asyncio.wrap_future(service.loaded)
            giving = session.giving
            giving.idle_bytes = giving.drafter_bytes = giving.kept_bytes = giving.parkable_bytes = 0
            seconds(service, 0, 1)
            await until(lambda: service.memory.ledger.is_shut)
            async with service.text():
                for _ in range(2):
                    with pytest.raises(ApiError) as refusal:
                        await read(service.submit([request(60)]))
                    assert refusal.value.status_code == 429
                    assert refusal.value.error["code"] == "memory_short"
                    assert refusal.value.headers == {"Retry-After": "30"}
                    assert len(await read(service.submit([request(3)]))) == 4
                await until(lambda: service.memory.ledger.items()["requests"] == 0)
                session.machine.room = 1000
                seconds(service, 1, 40)
                assert len(await read(service.submit([request(60)]))) == 61
        finally:
            await asyncio.to_thread(service.close)

    run(test())


@pytest.mark.thorough
def test_parts_have_their_memory_again_in_the_opposite_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.runtime.engine.ledger._CALM_S", 0.0)
    monkeypatch.setattr("edgedec.runtime.server.service._RECOVERY_S", 0.001)

    async def test() -> None:
        session = Giving(Machine(-500))
        service = service_of(session)
        service.start()
        try:
            await asyncio.wrap_future(service.loaded)
            seconds(service, 0, 1)
            await until(lambda: service.memory.ledger.is_shut)
            await asyncio.sleep(0.02)
            assert len(session.calls) == 4, "nothing may grow while memory is short"
            session.machine.room = 1000
            seconds(service, 1, 30)
            await asyncio.sleep(0.02)
            assert len(session.calls) == 4, "it must be calm for 30 seconds"
            seconds(service, 31, 2)
            await until(lambda: service.memory.ledger.all_open)
            assert session.calls[4:] == ["idle sequences again", "prompt cache again", "drafter again"]
        finally:
            await asyncio.to_thread(service.close)

    run(test())


@pytest.mark.thorough
def test_a_grammar_is_compiled_while_others_write_and_nothing_is_left_if_it_is_refused() -> None:
    async def test() -> None:
        session = scripted(100, sequences=2)
        session.steps.release(1 << 16)
        session.compiling.clear()
        grammar = Grammar.json_schema({"type": "boolean"})
        async with running(lambda: session.real) as service, service.text():
            assert session.prepared, "the vocabulary is read before the model is ready"
            waiting = service.submit([request(grammar=grammar)])
            await until(lambda: service.running == 1)
            whole = request_bytes(prompt=2, answer=3, program=len(grammar.program), lexer=grammar.lexer_bytes)
            assert service.memory.ledger.items()["requests"] == whole > ONE
            assert len(await read(service.submit([request()]))) == 4, "another text is written meanwhile"
            session.compiling.set()
            assert len(await read(waiting)) == 4
            session.refusal = UsageError("the grammar does not fit")
            with pytest.raises(ApiError, match="does not fit"):
                await read(service.submit([request(grammar=grammar)]))
            session.refusal = None
            session.compiling.clear()
            left = service.submit([request(grammar=grammar)])
            await until(lambda: service.running == 1)
            left.cancel()
            assert len(await read(service.submit([request()]))) == 4
            assert service.memory.ledger.items()["requests"] == whole, "the thread goes on"
            session.compiling.set()
            await until(lambda: service.memory.ledger.items()["requests"] == 0)
            assert not service.running

    run(test())


def test_a_failure_of_all_texts_frees_no_memory_of_a_compilation_that_goes_on() -> None:
    async def test() -> None:
        session = scripted(100, sequences=2)
        session.compiling.clear()
        grammar = Grammar.json_schema({"type": "boolean"})
        async with running(lambda: session.real) as service, service.text():
            texts: Any = service._texts
            compiled = service.submit([request(grammar=grammar)])
            await until(lambda: service.running == 1)
            step, texts.step = texts.step, lambda: 1 / 0
            with pytest.raises(ZeroDivisionError):
                await read(compiled)
            texts.step = step
            whole = request_bytes(prompt=2, answer=3, program=len(grammar.program), lexer=grammar.lexer_bytes)
            assert service.memory.ledger.items()["requests"] == whole
            session.compiling.set()
            await until(lambda: service.memory.ledger.items()["requests"] == 0)

    run(test())


@pytest.mark.parametrize("tool", [False, True])
def test_each_optional_property_of_a_grammar_is_charged(tool: bool) -> None:
    """Its compilation takes 9 to 11 kB for each, however short the names are."""

    def charged(names: int) -> int:
        schema: dict[str, Any] = {"type": "object", "properties": {f"a{at}": {} for at in range(names)}}
        grammar = Grammar.json_schema(schema)
        if tool:
            function = {"name": "f", "parameters": schema}
            grammar = tool_grammar([{"type": "function", "function": function}], "required")
        assert grammar.optional == names
        submission: Any = None
        return QueuedText(submission=submission, index=0, request=request(grammar=grammar)).most_bytes(64)

    assert charged(900) - charged(0) > 900 * (10 << 10)


@pytest.mark.thorough
@pytest.mark.parametrize("room", [MOST_LEXER_BYTES - 1, MOST_LEXER_BYTES])
def test_a_grammar_whose_lexer_has_no_room_in_the_budget_is_refused(room: int) -> None:
    async def test() -> None:
        session = ScriptedSession(sequences=2, budget_bytes=900 + 100 + room)  # weights, and the floor
        async with running(lambda: session.real) as service, service.text():
            submission = service.submit([request(grammar=Grammar.regex("a+"))])
            if room == MOST_LEXER_BYTES:
                assert len(await read(submission)) == 4
                return
            with pytest.raises(ApiError, match=r"15\.6 MiB .* larger --memory-budget") as refusal:
                await read(submission)
            assert (refusal.value.status_code, refusal.value.error["code"]) == (400, "memory_budget_exceeded")
            assert not session.answers

    run(test())


@pytest.mark.thorough
def test_the_end_of_the_service_does_not_wait_for_a_grammar() -> None:
    async def test() -> None:
        session = scripted(100)
        session.compiling.clear()
        async with running(lambda: session.real) as service, service.text():
            submission = service.submit([request(grammar=Grammar.json_schema({"type": "boolean"}))])
            await until(lambda: service.running == 1)
            await asyncio.to_thread(service.close)
            with pytest.raises(ApiError, match="the server is ending"):
                await submission.next(PATIENCE_S)
        session.compiling.set()
        await until(lambda: service.memory.ledger.charged_bytes == 0)

    run(test())


@pytest.mark.thorough
def test_large_bodies_are_held_in_the_ledger_and_refused_without_room() -> None:
    body = {"prompt": "a", "max_tokens": 3, "user": "x" * (20 << 10)}
    session = scripted(0)
    session.run.plan.budget_bytes = 900 + 200_000
    session.run.plan.phases["run"]["host"] = 100
    with serving(lambda: session.real) as server:
        ledger = server.service.memory.ledger
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.post, "/v1/completions", **body)
            while server.service.running == 0:
                time.sleep(0.001)
            held = ledger.items()["connections"]
            assert 4 * (20 << 10) < held < 4 * (21 << 10)
            refused = server.post("/v1/completions", **(body | {"user": "x" * (40 << 10)}))
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
            assert refused.json()["error"]["code"] == "memory_short"
            never = server.post("/v1/completions", **(body | {"user": "x" * (60 << 10)}))
            assert (never.status_code, never.json()["error"]["code"]) == (413, "body_too_large")
            assert ledger.items()["connections"] == held
            session.steps.release(1 << 16)
            assert answer.result(PATIENCE_S).status_code == 200
        while ledger.items()["connections"]:
            time.sleep(0.001)


def test_the_ledger_can_be_read(served: Served) -> None:
    data = served.client.get("/memory").json()
    items = data["ledger"]["items"]
    assert {"weights", "arena", "tokenizer", "passes"} <= set(items)
    assert sum(items.values()) == data["ledger"]["charged_bytes"] > 0
    assert [one["name"] for one in data["ledger"]["reclaimers"]] == [
        "idle pools",
        "drafter",
        "prompt cache",
        "idle sequences",
    ]
    assert set(data["pressure"]) == {"file", "stalled_share", "reserves_left", "high"}


@pytest.mark.thorough
def test_the_ledger_is_empty_without_a_model() -> None:
    with serving(lambda: ScriptedSession().real, idle_unload_s=0.01) as server:
        for _ in range(2000):
            if server.service.phase == "unloaded":
                break
            server.service.loaded.result(1)
        end = server.client.get("/memory").json()
    assert end["budget"] is None
    assert end["ledger"]["budget_bytes"] is None


@pytest.mark.thorough
def test_bodies_of_requests_that_load_the_model_stay_in_the_ledger() -> None:
    """They arrive before there is a budget, and may outlast the next unloading."""

    async def test() -> None:
        session = ScriptedSession(budget_bytes=100_000)
        memory = ServerMemory()
        with RequestMemory(memory) as early:
            early.hold_body(20_000)
            async with running(lambda: session.real, memory=memory):
                loaded = memory.ledger
                assert loaded.items() == {"weights": 900, "connections": 80_000}
            assert memory.ledger is not loaded
            assert memory.ledger.items() == {"connections": 80_000}
        assert memory.ledger.charged_bytes == 0

    run(test())


def test_a_text_looks_again_if_another_thread_takes_what_was_free() -> None:
    class Contended(MemoryLedger):
        def reserve(self, name: str, nbytes: int) -> Reservation:
            try:
                return super().reserve(name, nbytes)
            except AdmissionError:
                taken.append(super().reserve("connections", 10))
                raise

    memory, taken = ServerMemory(), list[Reservation]()
    memory.ledger = Contended(1000)
    assert memory.admit(2000, alone=True) is None
    memory.ledger = MemoryLedger(1000)
    admitted = memory.admit(2000, alone=True)
    assert admitted is not None
    assert admitted.nbytes == 1000
    with pytest.raises(AdmissionError):
        memory.admit(2000, alone=True, lexer=1001)


@pytest.mark.parametrize("logprobs", [None, 0, 5, 20])
def test_the_bytes_of_a_request_are_an_upper_bound(logprobs: int | None) -> None:
    """Compare with the objects that an answer of 500 tokens after 300 keeps, if its client takes no event."""
    answer, prompt = 500, 300
    tracemalloc.start()
    try:
        ids = np.arange(prompt, dtype=np.int32)
        top = [
            TokenLogprobs(
                token=at + 1000, logprob=-at / 3, top=tuple((at + 7, -at / 7 - n) for n in range(logprobs or 0))
            )
            for at in range((answer + prompt) if logprobs is not None else 0)
        ]
        tokens = [at + 100_000 for at in range(answer)]
        events = [
            TextPart(index=0, text=f" word{at}", tokens=(tokens[at],), guessed=False, logprobs=tuple(top[at : at + 1]))
            for at in range(answer)
        ]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(events) + len(ids) == answer + prompt
    text = TextSettings(n_predict=answer, logprobs=logprobs, prompt_logprobs=True)
    asked = TextRequest(prompt=ids, text=text)
    bound = request_bytes(prompt=prompt, answer=answer) + reported_bytes(asked, prompt + answer)
    assert used <= bound
