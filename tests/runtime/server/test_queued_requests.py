"""Test that each request that was accepted is answered, or told why not, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from edgedec.errors import BudgetError, DeviceError
from edgedec.memory.budget import MemoryLimit
from edgedec.runtime.engine.ledger import Reservation
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.memory import ServerMemory, request_bytes
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.submission import Submission, TextEnd, TextRequest
from edgedec.runtime.session.session import Session
from edgedec.runtime.text_settings import TextSettings
from tests.runtime.server.support.fake_session import ScriptedMemory, ScriptedSession
from tests.runtime.server.test_service import PATIENCE_S, read, run, running, until

QUEUE = 196  # requests that wait behind those that are being answered
ONE = request_bytes(prompt=2, answer=3)


def request(grammar: Grammar | None = None) -> TextRequest:
    text = TextSettings(n_predict=3, sampling=SamplingConfig(seed=1), grammar=grammar)
    return TextRequest(prompt=np.array([5, 6], np.int32), text=text)


async def outcome(submission: Submission) -> str:
    """Return "answered", or the status or the name of the error."""
    try:
        assert isinstance((await read(submission))[-1], TextEnd)
    except ApiError as error:
        return str(error.status_code)
    except Exception as error:
        return type(error).__name__
    return "answered"


async def outcomes(submissions: Sequence[Submission]) -> Counter[str]:
    return Counter(await asyncio.gather(*map(outcome, submissions)))


def room(ratio: float) -> list[MemoryLimit]:
    """Return a limit under which so many reserves are left."""
    left = int(100 * ratio)
    return [MemoryLimit(source="cgroup", name="a", limit_bytes=1600, used_bytes=1600 - left)]


class Short:
    """A service on a machine without memory; its watch is moved by hand."""

    def __init__(self) -> None:
        self.room, self._time = 8.0, 0.0
        self.memory = ServerMemory(limits=lambda: room(self.room))
        self.memory.watch.start = lambda: None  # type: ignore[method-assign]

    def look(self, ratio: float) -> None:
        self.room, self._time = ratio, self._time + 1
        self.memory.watch.measure_room()
        self.memory.watch.step(self._time, None)


@pytest.mark.thorough
def test_requests_behind_a_pass_that_fails_are_answered() -> None:
    async def test() -> None:
        session = ScriptedSession(steps=0, sequences=4)
        async with running(lambda: session.real, queue_limit=2 * QUEUE) as service:
            submissions = [service.submit([request()]) for _ in range(4 + QUEUE)]
            await until(lambda: service.running == 4)
            step = session.scheduler.step

            def fail() -> None:
                session.scheduler.step = step
                raise DeviceError("the device is gone")

            session.scheduler.step = fail
            session.steps.release(1 << 16)
            assert await outcomes(submissions) == {"answered": QUEUE, "500": 4}

    run(test())


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("place", ["relieve", "recover", "admit", "count_passes", "begin"])
def test_requests_are_answered_when_the_work_between_passes_fails(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail once with an error that nobody expects, while many wait."""

    async def test() -> None:
        session = ScriptedSession(steps=0, sequences=4)
        async with running(lambda: session.real, queue_limit=2 * QUEUE) as service:
            submissions = [service.submit([request()]) for _ in range(4 + QUEUE)]
            await until(lambda: service.running == 4)
            owner: Any = {"count_passes": service.metrics, "begin": service._texts}.get(place, service.memory)
            real = getattr(owner, place)

            def fail(*args: Any, **options: Any) -> Any:
                setattr(owner, place, real)
                raise MemoryError("no room for an object")

            setattr(owner, place, fail)
            if place == "relieve":
                service.memory._relief.set()
            session.steps.release(1 << 16)
            found = await outcomes(submissions)
            assert found.total() == 4 + QUEUE
            assert set(found) <= {"answered", "MemoryError"}
            assert found["answered"] >= QUEUE - 4
            assert await outcome(service.submit([request()])) == "answered"
            await until(lambda: not service.running)
            assert service.memory.ledger.items().get("requests", 0) == 0

    run(test())


@pytest.mark.thorough
def test_a_text_that_cannot_be_ended_leaves_the_others_alone() -> None:
    async def test() -> None:
        session = ScriptedSession(steps=0, sequences=2)
        async with running(lambda: session.real) as service:
            submissions = [service.submit([request()]) for _ in range(8)]
            await until(lambda: service.running == 2)
            texts = service._texts
            assert texts is not None
            _, stream = texts._running[0]

            def fail() -> None:
                raise RuntimeError("the device does not answer")

            stream.close = fail  # type: ignore[method-assign]
            submissions[0].cancel()
            session.steps.release(1 << 16)
            assert await outcomes(submissions) == {"answered": 7, "GoneError": 1}

    run(test())


@pytest.mark.thorough
def test_a_grammar_for_which_the_system_starts_no_thread_fails_its_request_alone() -> None:
    async def test() -> None:
        session = ScriptedSession(sequences=2)
        async with running(lambda: session.real) as service:
            texts = service._texts
            assert texts is not None
            threads = texts._threads

            def submit(*args: object) -> None:
                raise RuntimeError("can't start new thread")

            texts._threads = cast(Any, SimpleNamespace(submit_for=submit))
            refused = service.submit([request(Grammar.json_schema({"type": "boolean"}))])
            assert await outcome(refused) == "RuntimeError"
            texts._threads = threads
            assert await outcomes([service.submit([request()]) for _ in range(3)]) == {"answered": 3}

    run(test())


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["open", "ledger", "text"])
def test_requests_that_wait_for_a_model_that_cannot_be_loaded_again_are_told(place: str) -> None:
    async def test() -> None:
        loads: list[ScriptedSession] = []

        def open_session() -> Session:
            session = ScriptedSession()
            loads.append(session)
            if len(loads) == 2:
                if place == "open":
                    raise BudgetError("too large")
                if place == "ledger":
                    session.run.plan.budget_bytes = 1
                else:
                    del session.bundle.tokens
            return session.real

        async def ask(service: ModelService) -> str:
            try:
                async with service.text():
                    submission = service.submit([request()])
            except ApiError as error:
                return str(error.status_code)
            except Exception as error:
                return type(error).__name__
            return await outcome(submission)

        async with running(open_session, idle_unload_s=0.01, queue_limit=2 * QUEUE) as service:
            await until(lambda: service.phase == "unloaded")
            found = Counter(await asyncio.gather(*(ask(service) for _ in range(QUEUE))))
            assert found.total() == QUEUE
            assert set(found) <= {"503", "AttributeError", "answered"}
            assert found["answered"] < QUEUE
            assert loads[1].closed == (place != "open")
            service.idle_unload_s = 0.0
            assert await ask(service) == "answered"

    run(test())


@pytest.mark.thorough
def test_requests_are_answered_after_an_unloading_that_failed() -> None:
    async def test() -> None:
        loads: list[ScriptedSession] = []

        class Memory(ScriptedMemory):
            def move_to_disk(self) -> None:
                raise OSError("the disk is gone")

        def open_session() -> Session:
            loads.append(ScriptedSession())
            loads[-1].memory = Memory()
            return loads[-1].real

        async with running(open_session, idle_unload_s=0.01) as service:
            await until(lambda: loads[0].closed)
            async with service.text():
                submission = service.submit([request()])
            assert await outcome(submission) == "answered"
            assert len(loads) > 1

    run(test())


@pytest.mark.thorough
def test_each_request_that_comes_with_the_unloading_is_answered() -> None:
    async def test() -> None:
        async with running(lambda: ScriptedSession(sequences=2).real, idle_unload_s=1e-4) as service:
            for number in range(10):
                async with service.text():
                    submissions = [service.submit([request()]) for _ in range(3)]
                assert await outcomes(submissions) == {"answered": 3}
                await asyncio.sleep(number * 4e-5)

    run(test())


@pytest.mark.thorough
def test_small_requests_do_not_wait_for_the_room_that_their_own_bodies_hold() -> None:
    """Memory is short and all of the floor is held by bodies of requests that wait; a body ends with its answer."""

    async def test() -> None:
        session = ScriptedSession(sequences=2, budget_bytes=1 << 20)
        session.run.plan.phases["run"]["host"] = 1 << 17  # the floor
        short = Short()
        async with running(lambda: session.real, queue_limit=2 * QUEUE, memory=short.memory) as service:
            short.look(0.5)
            await until(lambda: service.memory.ledger.is_shut)
            bodies = list[Reservation]()
            while (left := service.memory.ledger.floor_bytes - sum(body.nbytes for body in bodies)) >= ONE:
                bodies.append(service.memory.ledger.reserve("connections", min(left, 1 << 17)))
            assert bodies
            assert await outcomes([service.submit([request()]) for _ in range(QUEUE)]) == {"answered": QUEUE}
            for body in bodies:
                body.close()

    run(test())


@pytest.mark.thorough
def test_a_full_queue_is_refused_when_memory_becomes_short(caplog: pytest.LogCaptureFixture) -> None:
    """More requests are refused at once than Python calls functions within each other; the log has one line."""

    async def test() -> None:
        session = ScriptedSession(steps=0, sequences=1, budget_bytes=1 << 20)
        session.run.plan.phases["run"]["host"] = 10  # no request is small
        short = Short()
        async with running(lambda: session.real, queue_limit=3000, memory=short.memory) as service:
            first = service.submit([request()])
            await until(lambda: service.running == 1)
            submissions = [service.submit([request()]) for _ in range(1500)]
            short.look(0.5)
            session.steps.release(1 << 16)
            assert await outcome(first) == "answered"
            assert await outcomes(submissions) == {"429": 1500}

    with caplog.at_level(logging.WARNING):
        run(test())
    lines = [record.getMessage() for record in caplog.records if "refused with 429" in record.getMessage()]
    assert len(lines) == 1
    assert "0.5 reserves are left" in lines[0]


def test_a_thread_that_ends_tells_all_who_wait() -> None:
    async def test() -> None:
        session = ScriptedSession(steps=0, sequences=4)
        async with running(lambda: session.real, queue_limit=2 * QUEUE) as service:
            submissions = [service.submit([request()]) for _ in range(4 + QUEUE)]
            await until(lambda: service.running == 4)

            def end() -> None:
                raise SystemExit

            session.scheduler.step = end
            assert await outcomes(submissions) == {"503": 4 + QUEUE}
            await until(lambda: not service.alive)
            assert service.phase == "failed"
            with pytest.raises(ApiError, match="cannot be loaded"):
                service.submit([request()])

    run(test())


@pytest.mark.thorough
def test_a_request_that_begins_while_the_service_ends_is_told() -> None:
    """The request is in the queue no more, and not among the texts yet."""

    async def test() -> None:
        session, closing = ScriptedSession(), threading.Event()
        write = session.write

        def slow(*args: Any, **options: Any) -> Any:
            session.began.set()
            closing.wait(PATIENCE_S)
            return write(*args, **options)

        session.write = slow  # type: ignore[method-assign]
        async with running(lambda: session.real) as service:
            submission = service.submit([request()])
            await until(session.began.is_set)
            ending = asyncio.get_running_loop().run_in_executor(None, service.close)
            await until(lambda: service._closing)
            closing.set()
            await ending
            assert await outcome(submission) == "503"

    run(test())
