"""Test the model's thread: turns, the queue and its end, clients that leave, and the model's unloading."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from edgedec.errors import BudgetError, DeviceError, UsageError
from edgedec.runtime.grammar.reasoning import Reasoning
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.progress import TextProgress
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.submission import GoneError, Submission, TextEnd, TextEvent, TextPart, TextRequest
from edgedec.runtime.server.turns import CLIENT
from edgedec.runtime.session.session import Session
from edgedec.runtime.text_settings import TextSettings
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.support.no_collector import no_collector

PATIENCE_S = 20.0  # seconds after which a test gives up


def request(n_predict: int = 3, sample: int = 0) -> TextRequest:
    text = TextSettings(n_predict=n_predict, sampling=SamplingConfig(seed=1), sample=sample)
    return TextRequest(prompt=np.array([5, 6], np.int32), text=text)


async def read(submission: Submission) -> list[TextEvent]:
    events = []
    while not submission.ended:
        event = await submission.next(PATIENCE_S)
        assert event is not None, "there was no event"
        events.append(event)
    return events


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        await asyncio.sleep(0.001)


@asynccontextmanager
async def running(open_session: Callable[[], Session], **options: Any) -> AsyncIterator[ModelService]:
    service = ModelService(open_session, **options)
    service.start()
    try:
        await asyncio.wait_for(asyncio.wrap_future(service.loaded), PATIENCE_S)
        yield service
    finally:
        await asyncio.to_thread(service.close)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * PATIENCE_S))


@pytest.mark.thorough
def test_the_events_of_an_answer() -> None:
    async def test() -> None:
        async with running(lambda: ScriptedSession().real) as service:
            events = await read(service.submit([request()]))
            assert [event.text for event in events if isinstance(event, TextPart)] == ["0.0 ", "0.1 ", "0.2 "]
            assert [event.tokens for event in events if not isinstance(event, TextProgress)] == [(0,), (1,), (2,), ()]
            end = events[-1]
            assert isinstance(end, TextEnd)
            assert (end.answer.text, end.answer.stop_reason) == ("0.0 0.1 0.2 ", "limit")

    run(test())


@dataclass(frozen=True, kw_only=True)
class MoreSettings(TextSettings):
    """The settings of an answer after one was added to them."""

    magic: str = "none"


@pytest.mark.thorough
def test_each_setting_of_an_answer_reaches_the_session_also_one_that_is_new() -> None:
    """The grammar and what the model calls are set when the text begins."""

    async def test() -> None:
        session = ScriptedSession()
        text = MoreSettings(
            n_predict=2,
            sampling=SamplingConfig(seed=1),
            stop=("END",),
            ignore_eos=True,
            reasoning=Reasoning(place="within", budget=8),
            sample=1,
            dropped=2,
            logprobs=3,
            logprobs_of="sampling",
            whole=True,
            stop_tokens=(7,),
            least_tokens=1,
            magic="white",
        )
        async with running(lambda: session.real) as service:
            await read(service.submit([replace(request(), text=text)]))
        (written,) = session.texts
        assert replace(written, interrupted=text.interrupted, progress=text.progress) == text

    run(test())


@pytest.mark.thorough
def test_what_changes_during_a_step_ends_its_rounds() -> None:
    """The model's thread waits in a step. It clears the signal before it looks at what has changed."""

    async def test() -> None:
        session = ScriptedSession(steps=0, sequences=2)

        def paused() -> bool:
            return ctypes.c_int32.from_address(session.pause.address).value != 0

        async with running(lambda: session.real) as service:
            first = service.submit([request()])
            await until(session.began.is_set)
            session.steps.release()
            await until(lambda: not paused())
            second = service.submit([request(sample=1)])
            assert paused()
            session.steps.release()
            await until(lambda: len(session.answers) == 2 and not paused())
            second.cancel()
            assert paused()
            session.steps.release(100)
            assert isinstance((await read(first))[-1], TextEnd)
            await until(lambda: not paused())
            service.memory.wake()
            assert paused()

    run(test())


@pytest.mark.thorough
def test_as_many_answers_are_written_at_a_time_as_the_session_was_opened_for() -> None:
    async def test() -> None:
        session = ScriptedSession(steps=0, sequences=2)
        async with running(lambda: session.real) as service:
            submission = service.submit([request(sample=number) for number in range(3)])
            await until(lambda: len(session.answers) == 2)
            assert (service.slots, service.running, service.waiting) == (2, 2, 1)
            session.steps.release(4)
            first = [await submission.next(PATIENCE_S) for _ in range(2)]
            assert sorted(event.index for event in first if event) == [0, 1], "they go on together"
            session.steps.release(100)
            events = await read(submission)
            ends = [event for event in events if isinstance(event, TextEnd)]
            assert [event.index for event in ends][-1] == 2
            assert {event.answer.text for event in ends} == {
                f"{number}.0 {number}.1 {number}.2 " for number in range(3)
            }

    run(test())


@pytest.mark.thorough
def test_a_client_that_leaves_disturbs_no_answer_beside_its_own() -> None:
    async def test() -> None:
        session = ScriptedSession(steps=0, sequences=3)
        async with running(lambda: session.real) as service:
            submissions = [service.submit([request(20, sample=number)]) for number in range(3)]
            await until(lambda: len(session.answers) == 3)
            session.steps.release(9)
            for submission in submissions:
                await submission.next(PATIENCE_S)
            submissions[1].cancel()
            await until(lambda: service.running == 2)
            session.steps.release(100)
            for submission in (submissions[0], submissions[2]):
                end = (await read(submission))[-1]
                assert isinstance(end, TextEnd)
                assert len(end.answer.tokens) == 20

    run(test())


@pytest.mark.thorough
def test_a_failure_of_no_request_fails_those_that_run_and_not_the_thread() -> None:
    async def test() -> None:
        session = ScriptedSession(steps=0, sequences=2)
        async with running(lambda: session.real) as service:
            submissions = [service.submit([request()]) for _ in range(2)]
            await until(lambda: len(session.answers) == 2)
            step, session.scheduler.step = session.scheduler.step, lambda: 1 // 0
            for submission in submissions:
                with pytest.raises(ZeroDivisionError):
                    await submission.next(PATIENCE_S)
            session.scheduler.step = step
            session.steps.release(100)
            assert len(await read(service.submit([request()]))) == 4

    run(test())


@pytest.mark.thorough
def test_requests_of_one_submission_are_admitted_together_or_not_at_all() -> None:
    async def test() -> None:
        session = ScriptedSession(steps=0)
        async with running(lambda: session.real, queue_limit=3) as service:
            first = service.submit([request()])
            await until(session.began.is_set)
            second = service.submit([request(sample=number) for number in range(2)])
            with pytest.raises(ApiError, match="2 requests wait already, the queue holds 3") as refused:
                service.submit([request(), request()])
            assert refused.value.status_code == 429
            assert int((refused.value.headers or {})["Retry-After"]) >= 1
            assert (service.running, service.waiting) == (1, 2)
            with pytest.raises(ApiError, match="asks for 4 texts, at most 3") as refused:
                service.submit([request()] * 4)
            assert refused.value.status_code == 400
            session.steps.release(100)
            await read(first)
            assert [event.index for event in await read(second)] == [0] * 4 + [1] * 4

    run(test())


@pytest.mark.thorough
def test_the_place_of_an_answer_is_free_when_its_client_reads_the_end() -> None:
    async def test() -> None:
        session = ScriptedSession(steps=1000)
        async with running(lambda: session.real, queue_limit=1) as service:
            for _ in range(50):
                first = service.submit([request()])
                await until(lambda: service.waiting == 0)
                second = service.submit([request()])
                await read(first)
                third = service.submit([request()])  # raises 429 if the queue is full
                await read(second)
                await read(third)

    run(test())


@pytest.mark.thorough
def test_a_client_that_leaves_the_queue_disturbs_no_other() -> None:
    async def test() -> None:
        session = ScriptedSession(steps=0)
        async with running(lambda: session.real) as service:
            first, second, third = (service.submit([request(sample=number)]) for number in range(3))
            await until(session.began.is_set)
            second.cancel()
            assert service.waiting == 1
            with pytest.raises(GoneError):
                await second.next()
            session.steps.release(100)
            assert len(await read(first)) == 4
            part = (await read(third))[0]
            assert isinstance(part, TextPart)
            assert part.text == "2.0 "
            assert len(session.answers) == 2, "the second one never began"

    run(test())


@pytest.mark.thorough
@pytest.mark.parametrize("steps", [0, 1, 3], ids=["in the prompt", "before the first token", "in the answer"])
def test_a_client_that_leaves_ends_its_answer(steps: int) -> None:
    async def test() -> None:
        session = ScriptedSession(steps=steps)
        async with running(lambda: session.real) as service:
            with service.submit([request(50)]) as submission:
                await until(session.began.is_set)
                for _ in range(steps - 1):
                    assert isinstance(await submission.next(PATIENCE_S), TextPart)
            await until(lambda: not service.running)
            assert session.answers[0].stop_reason == "interrupted"
            assert len(session.answers[0].tokens) == max(0, steps - 1)
            session.steps.release(100)
            assert len(await read(service.submit([request()]))) == 4, "the next one is answered"

    run(test())


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("failure", "expected", "status"),
    [
        (DeviceError("the board is gone"), ApiError, 500),
        (UsageError("no"), ApiError, 400),
        (KeyError("x"), KeyError, 0),
    ],
)
def test_a_request_that_fails_does_not_end_the_others(
    failure: Exception, expected: type[Exception], status: int
) -> None:
    async def test() -> None:
        session = ScriptedSession()
        async with running(lambda: session.real) as service:
            session.failure = failure
            submission = service.submit([request(), request()])
            with pytest.raises(expected) as raised:
                await read(submission)
            assert getattr(raised.value, "status_code", 0) == status
            assert len(await read(service.submit([request()]))) == 4

    run(test())


@pytest.mark.thorough
def test_work_on_texts_is_bounded() -> None:
    async def test() -> None:
        at_once, most, lock = 0, 0, threading.Lock()

        def work() -> None:
            nonlocal at_once, most
            with lock:
                at_once += 1
                most = max(most, at_once)
            time.sleep(0.005)
            with lock:
                at_once -= 1

        async def client(name: str) -> None:
            CLIENT.set(name)
            await service.side_work.in_thread(work)

        async with running(lambda: ScriptedSession().real) as service:
            await asyncio.gather(*(client(name) for name in "abcabcabcabc"))
        assert most == 2

    run(test())


@pytest.mark.thorough
def test_the_model_is_unloaded_when_idle_and_loaded_again() -> None:
    async def test() -> None:
        sessions: list[ScriptedSession] = []

        def open_session() -> Session:
            sessions.append(ScriptedSession())
            return sessions[-1].real

        async with running(open_session, idle_unload_s=0.02) as service:
            async with service.text():  # a request that is not submitted yet keeps the model
                await asyncio.sleep(0.1)
                assert (service.phase, len(sessions)) == ("ready", 1)
            await until(lambda: service.phase == "unloaded")
            await until(lambda: sessions[0].closed)
            assert sessions[0].memory.moved
            async with service.text() as text:
                assert text.context == 64
                submission = service.submit([request()])
                service.idle_unload_s = 0  # it stays loaded
            assert len(await read(submission)) == 4
            assert len(sessions) == 2
        assert sessions[1].closed
        assert not sessions[1].memory.moved  # nothing is written at the end of the server

    run(test())


@pytest.mark.thorough
@pytest.mark.parametrize("fails", [False, True], ids=["answered", "failed"])
def test_an_unloaded_model_is_freed(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that nothing keeps the session, whose weights would stay in memory. An idle process collects no cycles."""
    # pytest keeps the records of a test, and with an error the frames that it passed.
    monkeypatch.setattr(logging.getLogger("edgedec.runtime.server.texts"), "disabled", True)

    async def test() -> None:
        sessions: list[weakref.ref[ScriptedSession]] = []

        def open_session() -> Session:
            session = ScriptedSession()
            session.failure = KeyError("x") if fails else None
            sessions.append(weakref.ref(session))
            return session.real

        async with running(open_session, idle_unload_s=0.02) as service:
            async with service.text():
                submission = service.submit([request()])
            with suppress(KeyError) if fails else nullcontext():
                await read(submission)
            del submission
            await until(lambda: sessions[0]() is None)

    gc.collect()
    with no_collector():
        run(test())


@pytest.mark.thorough
def test_a_model_that_cannot_be_loaded_again_fails_its_requests_only() -> None:
    async def test() -> None:
        failures: list[Exception] = []

        def open_session() -> Session:
            if failures:
                raise failures.pop()
            return ScriptedSession().real

        async with running(open_session, idle_unload_s=0.02) as service:
            await until(lambda: service.phase == "unloaded")
            failures.append(BudgetError("too large"))
            with pytest.raises(ApiError, match="the model cannot be loaded: too large") as refused:
                async with service.text():
                    pass
            assert refused.value.status_code == 503
            async with service.text():
                submission = service.submit([request()])
            assert len(await read(submission)) == 4

    run(test())


def test_a_model_that_cannot_be_loaded_at_first_ends_the_service() -> None:
    def fail() -> Session:
        raise BudgetError("too large")

    service = ModelService(fail)
    service.start()
    with pytest.raises(BudgetError, match="too large"):
        service.loaded.result(PATIENCE_S)
    service.close()
    assert service.phase == "failed"


def test_a_request_after_the_end_of_the_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has told all who wait, and runs for another moment."""
    told, may_end = threading.Event(), threading.Event()

    class Ending(ModelService):
        def _end(self, failure: BaseException | None) -> None:
            super()._end(failure)
            told.set()
            may_end.wait(PATIENCE_S)

    async def test() -> None:
        service = Ending(lambda: ScriptedSession().real)
        monkeypatch.setattr(service, "_serve", lambda session: sys.exit("it fails"))
        service.start()
        await asyncio.to_thread(told.wait, PATIENCE_S)
        try:
            assert service._thread.is_alive()
            assert not service.alive
            with pytest.raises(ApiError, match="cannot be loaded"):
                service.submit([request()])
        finally:
            may_end.set()
            await asyncio.to_thread(service.close)

    run(test())


def test_requests_before_the_first_loading_are_refused() -> None:
    async def test() -> None:
        service = ModelService(lambda: ScriptedSession().real)
        with pytest.raises(ApiError, match="being loaded") as refused:
            async with service.text():
                pass
        assert refused.value.status_code == 503

    run(test())


@pytest.mark.thorough
def test_the_end_of_the_service_ends_running_and_waiting_answers() -> None:
    async def test() -> None:
        session = ScriptedSession(steps=0)
        async with running(lambda: session.real) as service:
            submissions = [service.submit([request()]) for _ in range(3)]
            await until(session.began.is_set)
        for submission in submissions:
            with pytest.raises(ApiError, match="the server is ending"):
                await submission.next(PATIENCE_S)
        assert session.closed
        with pytest.raises(ApiError, match="ending"):
            service.submit([request()])

    run(test())


@pytest.mark.thorough
def test_events_that_are_there_are_taken_at_once_and_an_error_after_them_is_raised_later() -> None:
    async def test() -> None:
        session = ScriptedSession(steps=0)
        async with running(lambda: session.real) as service:
            submission = service.submit([request(5)])
            await until(session.began.is_set)
            assert submission.available() == []
            session.steps.release(4)
            first = await submission.next(PATIENCE_S)
            await until(lambda: submission._events.qsize() >= 2)
            session.failure = DeviceError("the board is gone")
            session.steps.release(100)
            await until(lambda: not service.running)
            await until(lambda: submission._events.qsize() >= 3)
            parts = [first, *submission.available()]
            assert [part.text for part in parts if isinstance(part, TextPart)] == ["0.0 ", "0.1 ", "0.2 "]
            assert submission.available() == []
            with pytest.raises(ApiError, match="the board is gone"):
                await submission.next(PATIENCE_S)
            assert isinstance(submission.error, ApiError)

    run(test())


@pytest.mark.thorough
def test_the_end_of_a_submission_may_be_among_the_events_that_are_there() -> None:
    async def test() -> None:
        async with running(lambda: ScriptedSession().real) as service:
            submission = service.submit([request()])
            await until(lambda: submission._events.qsize() == 4)
            assert len(submission.available()) == 4
            assert submission.ended

    run(test())
