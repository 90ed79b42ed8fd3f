"""Test that the work of one client does not keep the others waiting."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.server import structure
from edgedec.runtime.server.submission import QueuedText, may_begin, queue_fairly, take
from edgedec.runtime.server.turns import CLIENT, FairThreads
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.serving import Served, serving
from tests.runtime.server.test_streaming import idle, until

SLOW, OTHER = "slow-key", "other-key"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
PATIENCE_S = 20


class Gated:
    """Work that waits until it may go on, and notes who began."""

    def __init__(self) -> None:
        self.may_go, self.began = threading.Event(), list[str]()

    def work(self, name: str) -> str:
        self.began.append(name)
        assert self.may_go.wait(PATIENCE_S)
        return name


@pytest.fixture
def gated() -> Iterator[Gated]:
    made = Gated()
    yield made
    made.may_go.set()


def test_clients_take_turns(gated: Gated) -> None:
    threads = FairThreads(1, "test")
    futures = [threads.submit_for(name[0], gated.work, name) for name in ("a0", "a1", "a2", "a3", "b0", "c0", "b1")]
    until(lambda: gated.began)
    assert [threads.waiting(name) for name in "abcd"] == [3, 2, 1, 0]
    gated.may_go.set()
    assert [future.result(PATIENCE_S) for future in futures] == ["a0", "a1", "a2", "a3", "b0", "c0", "b1"]
    assert gated.began == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]
    threads.shutdown()


def test_a_client_has_one_thread(gated: Gated) -> None:
    threads = FairThreads(3, "test")
    futures = [threads.submit_for(name[0], gated.work, name) for name in ("a0", "a1", "a2", "b0")]
    until(lambda: len(gated.began) == 2)
    assert sorted(gated.began) == ["a0", "b0"]
    gated.may_go.set()
    assert [future.result(PATIENCE_S) for future in futures] == ["a0", "a1", "a2", "b0"]
    threads.shutdown()


def test_work_belongs_to_the_client_of_the_context(gated: Gated) -> None:
    threads = FairThreads(1, "test")
    token = CLIENT.set("a")
    futures: list[Future[Any]] = [threads.submit(gated.work, name) for name in ("a0", "a1")]
    until(lambda: gated.began)
    assert (threads.waiting("a"), threads.waiting("")) == (1, 0)
    CLIENT.reset(token)
    gated.may_go.set()
    assert [future.result(PATIENCE_S) for future in futures] == ["a0", "a1"]
    threads.shutdown()


def test_a_failure_belongs_to_its_future(gated: Gated) -> None:
    def fail() -> None:
        raise KeyError("x")

    threads = FairThreads(1, "test")
    failed, cancelled = threads.submit_for("a", fail), threads.submit_for("b", gated.work, "b")
    with pytest.raises(KeyError, match="x"):
        failed.result(PATIENCE_S)
    until(lambda: gated.began)
    waiting = threads.submit_for("a", gated.work, "a")
    assert waiting.cancel()
    last = threads.submit_for("a", gated.work, "last")
    gated.may_go.set()
    assert (cancelled.result(PATIENCE_S), last.result(PATIENCE_S)) == ("b", "last")
    assert gated.began == ["b", "last"]
    threads.shutdown()


def test_the_end_cancels_what_waits(gated: Gated) -> None:
    threads = FairThreads(1, "test")
    running, waiting = (threads.submit_for("a", gated.work, name) for name in "ab")
    until(lambda: gated.began)
    threads.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    gated.may_go.set()
    assert running.result(PATIENCE_S) == "a"


def test_what_is_cancelled_leaves_the_queue(gated: Gated) -> None:
    threads = FairThreads(1, "test")
    running, *waiting = (threads.submit_for("a", gated.work, name) for name in "abc")
    until(lambda: gated.began)
    assert [future.cancel() for future in (running, *waiting)] == [False, True, True]
    assert threads.waiting("a") == 0
    gated.may_go.set()
    assert running.result(PATIENCE_S) == "a"
    threads.shutdown()
    assert gated.began == ["a"]


def test_a_client_keeps_its_turn_when_one_of_its_works_is_cancelled(gated: Gated) -> None:
    threads = FairThreads(1, "test")
    _, cancelled, *others = (threads.submit_for(name[0], gated.work, name) for name in ("a0", "a1", "a2", "b0"))
    until(lambda: gated.began)
    cancelled.cancel()
    gated.may_go.set()
    assert [future.result(PATIENCE_S) for future in others] == ["a2", "b0"]
    threads.shutdown()
    assert gated.began == ["a0", "a2", "b0"]


def test_work_for_which_no_thread_can_be_started_does_not_begin_later(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, began = FairThreads(1, "test"), list[str]()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse_to_start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threads.submit(began.append, "a")
    assert threads.submit(lambda: "b").result(PATIENCE_S) == "b"
    threads.shutdown()
    assert not began


def refuse_to_start(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def queued(waiting: deque[QueuedText], client: str, count: int = 1) -> None:
    made: Any = [SimpleNamespace(client=client, rank=0, passed=0, name=f"{client}{at}") for at in range(count)]
    queue_fairly(waiting, made)


def test_clients_take_turns_in_the_queue() -> None:
    waiting: deque[Any] = deque()
    queued(waiting, "a", 4)
    queued(waiting, "b", 2)
    queued(waiting, "c")
    assert [turn.name for turn in waiting] == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]
    for _ in range(4):
        waiting.popleft()
    queued(waiting, "c", 2)  # no sooner than those who wait since
    queued(waiting, "b")
    assert [turn.name for turn in waiting] == ["b1", "c0", "a2", "c1", "b0", "a3"]


def test_a_client_who_comes_often_does_not_keep_another_waiting() -> None:
    waiting: deque[Any] = deque()
    queued(waiting, "a", 8)
    begun = []
    for _ in range(16):
        queued(waiting, "b")
        begun.append(waiting.popleft().client)
    assert begun[:4] == ["a", "b", "a", "b"]
    assert begun.count("a") >= 8


def free(waiting: deque[Any]) -> list[Any]:
    """Return the turns that may begin, if those before them wait for memory."""
    return list(may_begin(waiting))


def test_those_of_others_may_pass_one_that_waits() -> None:
    waiting: deque[Any] = deque()
    queued(waiting, "a", 3)
    queued(waiting, "b", 2)
    queued(waiting, "c")
    assert [turn.name for turn in free(waiting)] == ["a0", "b0", "c0"]
    assert take(waiting, waiting[2])
    assert [(turn.name, turn.passed) for turn in waiting] == [("a0", 1), ("b0", 1), ("a1", 0), ("b1", 0), ("a2", 0)]
    assert not take(waiting, cast(Any, SimpleNamespace()))
    assert waiting[0].passed == 1


def test_no_turn_is_passed_more_often_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of three waits for memory, then the second, while others come without end."""
    monkeypatch.setattr("edgedec.runtime.server.submission._MOST_PASSED", 5)
    waiting: deque[Any] = deque()
    queued(waiting, "a")
    queued(waiting, "b")
    passed = []
    for at in range(40):
        queued(waiting, f"c{at}")
        others = [turn for turn in free(waiting) if turn.client not in "ab"]
        if not others:
            break
        assert take(waiting, others[0])
        passed.append(others[0].name)
    assert len(passed) == 5
    assert max(turn.passed for turn in waiting) == 5
    assert [turn.name for turn in free(waiting)] == ["a0"]  # and nothing else, until it begins


def test_few_of_a_long_queue_are_looked_at() -> None:
    waiting: deque[Any] = deque()
    queued(waiting, "a", 3000)
    for at in range(20):
        queued(waiting, f"c{at}")
    assert [turn.name for turn in free(waiting)] == ["a0", *(f"c{at}0" for at in range(7))]


# A server.


@pytest.fixture
def served(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Return a server with two clients, where a grammar is made when ``gated`` lets it."""
    grammar = structure._grammar

    def made(*args: Any) -> Grammar:
        gated.work("grammar")
        return grammar(*args)

    monkeypatch.setattr(structure, "_grammar", made)
    with serving(lambda: ScriptedSession().real, api_keys=(SLOW, OTHER)) as server:
        server.client.headers["Authorization"] = f"Bearer {OTHER}"
        yield server


def ask(served: Served, at: int, key: str = SLOW) -> tuple[int, str | None]:
    """Return the status and the code of the error of a request with its own grammar, and with a header that is no key."""
    headers = {"Authorization": f"Bearer {key}", "X-Api-Key": f"noise-{at}"}
    body = {"prompt": "a", "max_tokens": 1, "json_schema": {**SCHEMA, "title": str(at)}}
    response = served.client.post("/v1/completions", json=body, headers=headers)
    return response.status_code, response.json().get("error", {}).get("code")


@pytest.mark.thorough
def test_grammars_of_one_client_keep_no_text_waiting(served: Served, gated: Gated) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, served, at) for at in range(4)]
        until(lambda: served.service.side_work.grammar_threads.waiting(f"127.0.0.1 {[0]}") == 3)
        assert served.complete(max_tokens=1).status_code == 200
        assert served.chat(max_tokens=1).status_code == 200
        gated.may_go.set()
        assert {future.result() for future in asked} == {(200, None)}


@pytest.mark.thorough
def test_a_client_with_many_grammars_is_refused_and_no_other(
    served: Served, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedec.runtime.server.side_work._GRAMMARS_WAITING", 2)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, served, at) for at in range(3)]
        until(lambda: served.service.side_work.grammar_threads.waiting(f"127.0.0.1 {[0]}") == 2)
        assert ask(served, 9) == (429, "too_many_grammars")
        other = pool.submit(ask, served, 10, OTHER)
        until(lambda: served.service.side_work.grammar_threads.waiting(f"127.0.0.1 {[1]}") == 1)
        gated.may_go.set()
        assert {future.result() for future in (*asked, other)} == {(200, None)}


@pytest.mark.thorough
def test_a_grammar_that_is_late_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.runtime.server.side_work.GRAMMAR_S", 0.05)
    assert ask(served, 0) == (503, "grammar_timeout")
    assert served.complete(max_tokens=1).status_code == 200
    until(lambda: idle(served))


@pytest.mark.thorough
def test_a_compilation_that_is_late_is_given_up(script: ScriptedSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.runtime.server.texts.GRAMMAR_S", 0.05)
    script.steps.release(1 << 20)
    script.compiling.clear()
    with serving(lambda: script.real, api_keys=(SLOW, OTHER)) as server:
        assert ask(server, 0) == (503, "grammar_timeout")
        server.client.headers["Authorization"] = f"Bearer {OTHER}"
        assert server.complete(max_tokens=1).status_code == 200
        until(lambda: server.service.running == 1)  # its thread goes on, and holds the memory
        assert server.service.memory.ledger.items()["requests"] > 1 << 18
        script.compiling.set()
        until(lambda: idle(server) and not server.service.memory.ledger.items()["requests"])


@pytest.mark.thorough
def test_a_client_cannot_fill_the_queue(script: ScriptedSession) -> None:
    def status(key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        return server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers=headers).status_code

    with (
        serving(lambda: script.real, api_keys=(SLOW, OTHER), queue_limit=8) as server,
        ThreadPoolExecutor(16) as pool,
    ):
        first = [pool.submit(status, SLOW)]
        until(lambda: server.service.running == 1)
        first += [pool.submit(status, SLOW) for _ in range(7)]
        until(lambda: server.service.waiting == 7)
        assert status(SLOW) == 429
        last = pool.submit(status, OTHER)
        until(lambda: server.service.waiting == 8)
        assert [turn.client[-3:] for turn in server.service._waiting][:3] == ["[0]", "[1]", "[0]"]
        script.steps.release(1 << 20)
        assert {future.result() for future in (*first, last)} == {200}
