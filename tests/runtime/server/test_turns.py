"""Test that the work of one client does not keep the others waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.server import structure
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
        until(lambda: served.service._grammar_threads.waiting(f"127.0.0.1 {[0]}") == 3)
        assert served.complete(max_tokens=1).status_code == 200
        assert served.chat(max_tokens=1).status_code == 200
        gated.may_go.set()
        assert {future.result() for future in asked} == {(200, None)}


@pytest.mark.thorough
def test_a_client_with_many_grammars_is_refused_and_no_other(
    served: Served, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedec.runtime.server.service._GRAMMARS_WAITING", 2)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, served, at) for at in range(3)]
        until(lambda: served.service._grammar_threads.waiting(f"127.0.0.1 {[0]}") == 2)
        assert ask(served, 9) == (429, "too_many_grammars")
        other = pool.submit(ask, served, 10, OTHER)
        until(lambda: served.service._grammar_threads.waiting(f"127.0.0.1 {[1]}") == 1)
        gated.may_go.set()
        assert {future.result() for future in (*asked, other)} == {(200, None)}


@pytest.mark.thorough
def test_a_grammar_that_is_late_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.runtime.server.service.GRAMMAR_S", 0.05)
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
        until(lambda: idle(server))
        script.compiling.set()
