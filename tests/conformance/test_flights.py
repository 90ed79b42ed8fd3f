"""Let rounds go on while their tokens are read, and use the target and the cache of the text in the middle of it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.runtime import loop
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder, AutoregressiveSequence, open_decoder
from edgedec.runtime.drafters._releasing import ReleasingDrafter
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.loop.flight import Flight
from edgedec.runtime.loop.inputs import SUBMIT
from edgedec.runtime.loop.rounds import RoundsCall
from edgedec.runtime.planning.speculation import create_drafter, create_policy, create_verifier
from edgedec.runtime.protocols import Drafter, Limits, Outcome, Pass, Request, TokenTree
from edgedec.runtime.rounds.adaptive import Adaptive
from edgedec.runtime.rounds.compiled_text import land
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._cpu import CpuTarget
from tests.runtime.support.bench_decoders import PROMPT, VOCAB, Pair, make_pair
from tests.support.no_collector import no_collector

pytestmark = pytest.mark.skipif(loop.load() is None, reason="the loop's library was not built (no C++ compiler)")
LIMITS = Limits(nodes=4, depth=0, positions=90, cache_rows=600, batch_rows=32)


class Counter:
    """A number that another thread waits for."""

    def __init__(self) -> None:
        self.count, self._changed = 0, threading.Condition()

    def add(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, 60)


@dataclass
class Bench:
    """A target whose passes wait for a permit, as long ones would.

    Members:
        target: the target.
        permits: counts the passes that may run.
        begun: counts the passes that began.
    """

    target: CpuTarget
    permits: threading.Semaphore
    begun: Counter
    drafter: Drafter | str = "none"
    limits: Limits = LIMITS

    def start(self, **settings: Any) -> tuple[AutoregressiveDecoder, AutoregressiveSequence, Engine]:
        """Begin a text that is read while it is written; passes look long."""
        decoder = open_decoder(self.target, self.target.open(LIMITS), drafter=self.drafter, vocab_limit=VOCAB)
        sampler = Sampler(SamplingConfig(temperature=0.9, seed=5), VOCAB)
        sequence = decoder.start(
            Request(
                prompt=PROMPT,
                limits=self.limits,
                processor=sampler.distribution,
                sampler=sampler,
                verifier=create_verifier("match", 0.9),
                random=PositionRandom.seeded(5),
                ahead_seconds=1e-9,
                **{"policy": create_policy("chain"), **settings},
            )
        )
        engine = Engine(self.target, rows=LIMITS.nodes, cost=decoder.cost)
        engine.add(sequence)
        return decoder, sequence, engine

    def text(self, engine: Engine, tokens: list[int], count: int) -> None:
        """Write until the text has ``count`` tokens."""
        while len(tokens) < count and engine.sequences:
            for part in engine.step():
                assert part.error is None
                tokens += [token.id for token in part.tokens]

    @property
    def flight(self) -> Flight | None:
        """The rounds that run now."""
        assert self.target.compiled is not None
        flight = self.target.compiled.flight
        return None if flight is None else flight()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def opened(pair: Pair) -> CpuTarget:
    target = open_target(pair.large, limits=LIMITS, threads=1)
    if not isinstance(target, CpuTarget):
        pytest.skip("the kernels were not built")
    return target


@pytest.fixture
def bench(opened: CpuTarget) -> Iterator[Bench]:
    bench = Bench(opened, threading.Semaphore(10**6), Counter())
    assert opened.compiled is not None
    arguments, usual = opened.compiled.inputs.arguments, SUBMIT(opened.session.run_function)

    def run(session: int, rows: int, results: int) -> int:
        bench.begun.add()
        bench.permits.acquire()
        return int(usual(session, rows, results))

    arguments.submit = waiting = SUBMIT(run)
    free = opened.free_rows
    yield bench
    assert bench.flight is None
    assert opened.free_rows == free
    arguments.submit = usual
    del waiting


@pytest.fixture
def expected(bench: Bench) -> list[int]:
    """Return the text that is written by rounds one at a time."""
    decoder, _, engine = bench.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "load", lambda: None)
        tokens: list[int] = []
        bench.text(engine, tokens, 1000)
    decoder.state.close()
    assert len(PROMPT) + len(tokens) == LIMITS.positions + 1
    return tokens


def test_the_whole_text_is_the_same(bench: Bench, expected: list[int]) -> None:
    decoder, sequence, engine = bench.start()
    tokens: list[int] = []
    bench.text(engine, tokens, 5)
    assert isinstance(bench.flight, Flight)
    bench.text(engine, tokens, 1000)
    assert tokens == expected
    assert decoder.cached == [*PROMPT.tolist(), *tokens][: LIMITS.positions]
    assert sequence.rounds.count == len(tokens)
    decoder.state.close()


def test_the_next_pass_begins_before_the_tokens_are_read_and_no_third_one(bench: Bench, expected: list[int]) -> None:
    decoder, _, engine = bench.start()
    tokens: list[int] = []
    bench.permits = threading.Semaphore(2)
    bench.text(engine, tokens, 3)  # the prompt's, that of a pass alone, and that of the first one in flight
    flight = bench.flight
    assert flight is not None
    assert flight.call._thread is not None
    bench.begun.wait(3)  # the second one in flight has begun
    bench.permits.release(10**6)
    flight.call._thread.join()
    assert bench.begun.count == 3
    bench.text(engine, tokens, 1000)
    assert tokens == expected
    decoder.state.close()


def test_no_pass_runs_after_the_last_token(bench: Bench, expected: list[int]) -> None:
    for settings, count in (({"most_tokens": 9}, 9), ({"ends": (expected[6],)}, expected.index(expected[6]) + 1)):
        decoder, _, engine = bench.start(**settings)
        tokens: list[int] = []
        bench.begun.count = 0
        bench.text(engine, tokens, count)
        assert tokens == expected[:count]
        if bench.flight is not None:
            bench.flight.land()
        assert bench.begun.count == count - 1
        decoder.state.close()


def _submit(bench: Bench, decoder: AutoregressiveDecoder) -> None:
    other = bench.target.open(LIMITS)
    work = Pass(ids=PROMPT[:3], positions=np.arange(3, dtype=np.int32))
    (result,) = bench.target.submit([(other, work)]).result()
    assert np.isfinite(result.logits).all()
    other.close()


def _fork(bench: Bench, decoder: AutoregressiveDecoder) -> None:
    length = decoder.state.length
    fork = decoder.state.fork()
    assert fork.length == length
    fork.close()


@pytest.mark.parametrize("use", [_submit, _fork], ids=["submit", "fork"])
def test_who_uses_target_or_cache_ends_the_flight(
    bench: Bench, expected: list[int], use: Callable[[Bench, AutoregressiveDecoder], None]
) -> None:
    decoder, _, engine = bench.start()
    tokens: list[int] = []
    for more in (5, 1, 11, 20):
        bench.text(engine, tokens, len(tokens) + more)
        assert bench.flight is not None
        assert decoder.state.length == len(PROMPT) + len(tokens) - 1
        use(bench, decoder)
        assert bench.flight is None
        assert decoder.state.length == len(PROMPT) + len(tokens) - 1
    bench.text(engine, tokens, 1000)
    assert tokens == expected
    decoder.state.close()


def test_a_second_text_joins_and_leaves(bench: Bench, expected: list[int]) -> None:
    first, _, engine = bench.start()
    tokens: list[int] = []
    bench.text(engine, tokens, 7)
    assert bench.flight is not None
    second, sequence, _ = bench.start()
    engine.add(sequence)
    texts: dict[object, list[int]] = {}
    while len(texts.get(sequence, ())) < 5:
        for part in engine.step():
            texts.setdefault(part.sequence, []).extend(token.id for token in part.tokens)
    assert bench.flight is None
    engine.remove(sequence)
    joined = texts.pop(sequence)
    assert joined == expected[: len(joined)]
    (more,) = texts.values()
    tokens += more
    bench.text(engine, tokens, 12 + len(tokens))
    assert bench.flight is not None
    bench.text(engine, tokens, 1000)
    assert tokens == expected
    first.state.close()
    second.state.close()


def test_a_text_that_is_left_in_flight_gives_its_cache_back(bench: Bench, expected: list[int]) -> None:
    decoder, sequence, engine = bench.start()
    tokens: list[int] = []
    bench.text(engine, tokens, 5)
    assert bench.flight is not None
    engine.remove(sequence)
    decoder.state.close()
    assert bench.flight is None


@contextmanager
def failing_pass(bench: Bench, number: int) -> Iterator[None]:
    """Let the pass of this number fail, and succeed when it runs again."""
    assert bench.target.compiled is not None
    usual, left = SUBMIT(bench.target.session.run_function), [number]

    def failing(session: int, rows: int, results: int) -> int:
        left[0] -= 1
        return -1 if left[0] == 0 else int(usual(session, rows, results))

    bench.target.compiled.inputs.arguments.submit = bad = SUBMIT(failing)
    yield
    assert left[0] < 0
    del bad


def test_a_pass_that_fails_in_flight_loses_no_token(bench: Bench, expected: list[int]) -> None:
    """The pass that fails runs again outside of the flight, in which it succeeds."""
    assert bench.target.compiled is not None
    decoder, _, engine = bench.start()
    tokens: list[int] = []
    bench.text(engine, tokens, 5)
    decoder.state.fork().close()  # ends the flight
    with failing_pass(bench, 3):
        bench.text(engine, tokens, 1000)
    assert tokens == expected
    decoder.state.close()


def test_a_row_without_a_token_ends_the_text_after_those_that_were_read(bench: Bench, expected: list[int]) -> None:
    decoder, _, engine = bench.start()
    tokens: list[int] = []
    bench.text(engine, tokens, 7)
    assert bench.flight is not None
    lender = bench.target.compiled
    assert lender is not None
    usual = SUBMIT(bench.target.session.run_function)

    def spoilt(session: int, rows: int, results: int) -> int:
        ended = int(usual(session, rows, results))
        lender.inputs.logits[:rows] = np.nan
        return ended

    lender.inputs.arguments.submit = broken = SUBMIT(spoilt)
    errors = list[Exception | None]()
    while engine.sequences:
        for part in engine.step():
            tokens += [token.id for token in part.tokens]
            errors.append(part.error)
    assert "is nan" in str(errors[-1])
    assert 7 <= len(tokens) <= 9
    assert tokens == expected[: len(tokens)]
    decoder.state.close()
    del broken


def test_rounds_one_at_a_time_do_not_fly(bench: Bench, expected: list[int]) -> None:
    decoder, sequence, engine = bench.start()
    sequence.request = replace(sequence.request, ahead_seconds=0.0)
    tokens: list[int] = []
    bench.text(engine, tokens, 8)
    assert bench.flight is None
    assert tokens == expected[: len(tokens)]
    decoder.state.close()


def test_a_text_without_a_further_thread_is_the_same(
    bench: Bench, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    decoder, _, engine = bench.start()
    tokens: list[int] = []
    bench.text(engine, tokens, 4)
    decoder.state.fork().close()  # ends the flight
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        bench.text(engine, tokens, 20)
        assert bench.flight is None
    bench.text(engine, tokens, 1000)
    assert tokens == expected
    decoder.state.close()


def test_an_interrupted_landing_is_made_up_for(
    bench: Bench, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, _, engine = bench.start()
    tokens: list[int] = []
    bench.text(engine, tokens, 4)
    halt = RoundsCall.halt

    def interrupted(call: RoundsCall, owner: object) -> bool:
        halt(call, owner)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RoundsCall, "halt", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoder.state.fork()
        assert bench.flight is not None
    bench.text(engine, tokens, 1000)
    assert tokens == expected
    decoder.state.close()


def test_what_is_dropped_in_flight_is_freed_at_once(tmp_path: Path) -> None:
    """The last reference goes while a pass runs; the pass ends, and then nothing is left."""
    target = open_target(make_pair(tmp_path).large, limits=LIMITS, threads=1)
    if not isinstance(target, CpuTarget):
        pytest.skip("the kernels were not built")
    assert target.compiled is not None
    bench = Bench(target, threading.Semaphore(10**6), Counter())
    decoder, sequence, engine = bench.start()
    bench.text(engine, [], 1)
    tokens: list[int] = []
    bench.text(engine, tokens, 5)
    assert bench.flight is not None
    thread = bench.flight.call._thread
    alive = [weakref.ref(one) for one in (target, target.session, target._arena, target._weights, decoder.state)]
    with no_collector():
        del bench, target, sequence, engine, decoder
        assert thread is not None
        assert not thread.is_alive()
        del thread
        assert [one() for one in alive] == [None] * len(alive)


GUESSES = replace(LIMITS, depth=3)


@pytest.fixture(params=["ngram", "trigram", "model", "itself"])
def guessing(request: pytest.FixtureRequest, bench: Bench, pair: Pair) -> Bench:
    """Return the bench with a drafter, whose guesses always look worth their time; the model itself is mostly right."""
    models = {"model": pair.small, "itself": pair.large}
    name = "model" if request.param in models else request.param
    bench.drafter = create_drafter(name, models.get(request.param), threads=1)
    bench.limits = GUESSES
    patch = request.getfixturevalue("monkeypatch")
    patch.setattr(Adaptive, "size", lambda adaptive, policy, size, length: size)
    for name in ("speculative_round", "expanding", "reading"):
        patch.setattr(autoregressive, name, _not_in_flight(bench, getattr(autoregressive, name)))
    return bench


def _not_in_flight(bench: Bench, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of Python's drafting that fails while the library has the draft."""

    def called(*arguments: Any) -> Any:
        assert bench.flight is None
        return function(*arguments)

    return called


def test_rounds_with_guesses_fly_and_write_the_same(
    guessing: Bench, expected: list[int], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Use target and cache meanwhile, which ends the flight; the rounds that were not read are forgotten."""
    decoder, sequence, engine = guessing.start()
    tokens: list[int] = []
    flights = 0
    learned: list[int] = []  # the tokens of the trees and outcomes from which the decision to speculate learns
    observe = Adaptive.observe

    def observed(adaptive: Adaptive, tree: TokenTree, outcome: Outcome, **measured: Any) -> None:
        path = outcome.path
        assert tree.parents[path[1:]].tolist() == path[:-1].tolist()
        learned.extend([*tree.tokens[path[1:]].tolist(), outcome.next_token])
        observe(adaptive, tree, outcome, **measured)

    monkeypatch.setattr(Adaptive, "observe", observed)
    for use in (_submit, _fork) * 4:
        guessing.text(engine, tokens, len(tokens) + 4)
        flights += guessing.flight is not None
        assert decoder.state.length == len(PROMPT) + len(tokens) - 1
        assert tokens == expected[: len(tokens)]
        use(guessing, decoder)
        assert guessing.flight is None
    guessing.text(engine, tokens, 1000)
    assert flights > 1
    assert tokens == expected
    assert sequence.rounds.drafted > 0
    assert learned == tokens
    assert sum(sequence.rounds.accepted) > 5 or request.node.callspec.id != "itself"
    assert decoder.cached == [*PROMPT.tolist(), *tokens][: LIMITS.positions]
    decoder.state.close()


def test_a_second_text_with_guesses_joins_and_leaves(guessing: Bench, expected: list[int]) -> None:
    first, one, engine = guessing.start()
    tokens: list[int] = []
    guessing.text(engine, tokens, 8)
    assert guessing.flight is not None
    second, other, _ = guessing.start()
    engine.add(other)
    texts: dict[object, list[int]] = {one: tokens, other: []}
    while len(texts[other]) < 9:
        for part in engine.step():
            assert part.error is None
            texts[part.sequence] += [token.id for token in part.tokens]
    assert guessing.flight is None
    engine.remove(other)
    assert texts[other] == expected[: len(texts[other])]
    guessing.text(engine, tokens, 1000)
    assert tokens == expected
    first.state.close()
    second.state.close()


def test_another_request_meets_the_drafter_after_the_flight(guessing: Bench, expected: list[int]) -> None:
    """The reader leaves in mid-text, and the next text begins with the same draft."""
    decoder, sequence, engine = guessing.start()
    tokens: list[int] = []
    guessing.text(engine, tokens, 12)
    assert guessing.flight is not None
    engine.remove(sequence)
    again = decoder.start(sequence.request)
    engine.add(again)
    tokens.clear()
    guessing.text(engine, tokens, 1000)
    assert tokens == expected
    decoder.state.close()


def test_a_pass_that_fails_in_a_flight_with_guesses_loses_no_token(guessing: Bench, expected: list[int]) -> None:
    assert guessing.target.compiled is not None
    decoder, _, engine = guessing.start()
    tokens: list[int] = []
    guessing.text(engine, tokens, 8)
    decoder.state.fork().close()  # ends the flight
    with failing_pass(guessing, 3):
        guessing.text(engine, tokens, 1000)
    assert tokens == expected
    decoder.state.close()


def test_a_flight_that_ends_early_leaves_trees_of_its_own_size(bench: Bench, expected: list[int]) -> None:
    """Let trees shrink while rounds run, one of which fails: the next call has the new size."""
    bench.drafter, bench.limits, size = create_drafter("trigram", None, threads=1), GUESSES, [4]

    def sized(adaptive: Adaptive, policy: object, limits: Limits, length: int) -> Limits:
        return replace(limits, nodes=min(size[0], limits.nodes), depth=min(size[0] - 1, limits.depth))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Adaptive, "size", sized)
        decoder, _, engine = bench.start(policy=create_policy("static"))
        tokens: list[int] = []
        bench.text(engine, tokens, 6)
        decoder.state.fork().close()  # ends the flight
        with failing_pass(bench, 3):
            while len(tokens) < len(expected):
                bench.text(engine, tokens, len(tokens) + 1)
                size[0] = 2 if bench.flight is not None else size[0]
    assert tokens == expected
    decoder.state.close()


def test_the_size_of_trees_ends_a_flight_of_the_other_kind(bench: Bench, expected: list[int]) -> None:
    """Switch guesses on and off in mid-text; rounds that run are not those that were decided."""
    bench.drafter, bench.limits, depth = create_drafter("ngram", None, threads=1), GUESSES, [0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Adaptive, "size", lambda adaptive, policy, size, length: replace(size, depth=depth[0]))
        decoder, sequence, engine = bench.start()
        tokens: list[int] = []
        for number in range(6):
            depth[0] = 3 * (number % 2)
            bench.text(engine, tokens, len(tokens) + 8)
            assert bench.flight is not None
            compiled = sequence._compiled
            assert compiled is not None
            assert bool(compiled.flown[1]) == bool(depth[0])
        bench.text(engine, tokens, 1000)
    assert tokens == expected
    decoder.state.close()


def test_the_collector_may_free_a_flight_in_its_own_thread(bench: Bench) -> None:
    """Drop a text that only a cycle holds, and collect in a function that the rounds call."""
    inside, go = threading.Event(), threading.Event()
    usual, left = SUBMIT(bench.target.session.run_function), [4]

    def run(session: int, rows: int, results: int) -> int:
        if threading.current_thread() is not threading.main_thread():
            left[0] -= 1
            if not left[0]:
                inside.set()
                assert go.wait(60)
                gc.collect()
        return int(usual(session, rows, results))

    assert bench.target.compiled is not None
    with no_collector():
        bench.target.compiled.inputs.arguments.submit = counted = SUBMIT(run)
        decoder, sequence, engine = bench.start()
        tokens: list[int] = []
        while not inside.is_set():
            bench.text(engine, tokens, len(tokens) + 1)
            inside.wait(0.05)
        assert bench.flight is not None
        thread, state = bench.flight.call._thread, decoder.state
        assert thread is not None
        sequence.itself = sequence  # type: ignore[attr-defined]
        engine.remove(sequence)
        del sequence, engine, decoder
        go.set()
        thread.join(60)
        assert not thread.is_alive()
    gc.collect()
    state.close()
    del counted


def test_a_drafter_that_is_released_in_flight_takes_its_memory_along(bench: Bench, pair: Pair) -> None:
    """Land before the release, as a session does, and find nothing of the draft model left without the collector."""
    drafter = ReleasingDrafter(lambda: create_drafter("model", pair.small, threads=1))
    bench.drafter, bench.limits = drafter, GUESSES
    with no_collector(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Adaptive, "size", lambda adaptive, policy, size, length: size)
        decoder, _, engine = bench.start()
        bench.text(engine, [], 8)
        assert bench.flight is not None
        inner = decoder._draft.inner  # type: ignore[union-attr]
        kept = [weakref.ref(one) for one in (inner._target.compiled, inner._state)]
        del inner
        land(bench.target)
        drafter.release()
        assert [one() for one in kept] == [None, None]
    decoder.state.close()
