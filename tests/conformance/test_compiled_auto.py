"""Compare the choices of ``auto`` in the compiled loop with Python's: equal candidates, trees and observations in a round.

The clock is a list of drawn steps that both loops read equally often, so that equal choices are expected, not likely.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from ctypes import addressof
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedec.errors import CacheFullError, EdgedecError
from edgedec.plugins import load
from edgedec.runtime import loop
from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.decoders.autoregressive import open_decoder
from edgedec.runtime.drafters import auto
from edgedec.runtime.drafting import alone
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.loop.auto import CLOCK, AutoArguments, AutoHandle
from edgedec.runtime.loop.drafts import DraftHandle
from edgedec.runtime.loop.trees import CHAIN, CompiledGrowth, GrowthRule
from edgedec.runtime.planning.speculation import create_policy, create_verifier
from edgedec.runtime.protocols import I32, Limits, Outcome, Request, Sparse, Target, TargetInfo, TokenTree
from edgedec.runtime.rounds import compiled as compiled_rounds
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target
from tests.conformance.support.library import grown_tree
from tests.runtime.support.bench_decoders import VOCAB, Pair, make_pair
from tests.runtime.support.fake_world import Willing

LIBRARY = loop.load()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the loop's library was not built (no C++ compiler)")
LIMITS = Limits(nodes=8, depth=4, positions=240)
INFO = TargetInfo(vocab=30, tokenizer_hash="0" * 64, positions=240, taps=(), masks="any", batch_invariant=True)
NAMES = ("copy", "ngram", "stand", "trigram")
STEPS = (2e-6, 3e-4, 0.1)  # seconds of a call: a cheap one, and ones that take a part of a pass of a second
ACCEPT = np.full((LIMITS.depth, LIMITS.nodes), 0.5, np.float32)
Shape = Callable[[int], float]


class Steps:
    """A clock that goes on with each reading, by drawn steps of nearly one size for a while."""

    def __init__(self, seed: int, *, still: bool = False) -> None:
        self._rng, self._now, self._size, self._left = np.random.default_rng(seed), 0.0, 0.0, 0
        self._still = still

    def perf_counter(self) -> float:
        if self._still:
            return 0.0
        if not self._left:
            self._size, self._left = STEPS[int(self._rng.integers(len(STEPS)))], 40
        self._left -= 1
        self._now += self._size * (1 + self._rng.random())
        return self._now


def opened(names: Sequence[str] = NAMES, *, compiled: bool = True) -> auto._AutoDraft:
    """Return a draft whose candidates' drafts are in the library, or in Python."""
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(loop, "load", lambda: None)
        drafters = {name: load("edgedec.runtime.drafters", name).create() for name in names}
        draft = auto._AutoDrafter(drafters).open(INFO, LIMITS, ObservedCost())
        assert (draft.compiled is not None) == compiled
    return draft


def handle_of(draft: CompiledParts[DraftHandle]) -> DraftHandle:
    """Return the draft in the library."""
    handle = draft.compiled
    assert handle is not None
    return handle


def observations(state: AutoArguments, *, calls: bool = True) -> list[object]:
    """Return all that is known of the candidates and of the last choice, with or without the calls."""
    numbers: list[object] = [state.drafting, state.outcomes, state.chosen]
    for one in state.observed:
        numbers += [one.right, one.judged, one.unseen, one.read, one.guess]
        numbers += [*one.seconds, one.calls] if calls else []
    return numbers


def observe(handle: DraftHandle, tree: TokenTree, outcome: Outcome) -> None:
    assert LIBRARY is not None
    accepted = np.ascontiguousarray(tree.tokens[outcome.path], np.int32)
    LIBRARY.call(
        "edgedec_loop_draft_observe",
        *(handle.address, accepted.ctypes.data, len(accepted), outcome.next_token, None, None, 0),
    )


def a_text(seed: int) -> list[int]:
    """Return a text in which the candidates are right in turns: phrases that return, a period, and drawn tokens."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(0, 20, 9).tolist() for _ in range(3)]
    text = list[int]()
    while len(text) < LIMITS.positions:
        kind = int(rng.integers(4))
        if kind < 2:
            text += phrases[int(rng.integers(3))]
        elif kind == 2:
            text += [20, 21, 22] * 6
        else:
            text += rng.integers(0, 30, 12).tolist()
    return text[: LIMITS.positions]


def accepted_path(tree: TokenTree, new: Sequence[int]) -> Outcome:
    """Return the outcome of a tree that ``new`` follows."""
    path = [0]
    while children := [
        node
        for node in np.flatnonzero(tree.parents == path[-1]).tolist()
        if len(path) < len(new) and tree.tokens[node] == new[len(path) - 1]
    ]:
        path.append(children[0])
    return Outcome(path=np.array(path, np.int32), next_token=new[len(path) - 1])


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("policy", "seed"),
    [("chain", 0), ("chain", 1), ("chain", 2), ("chain", 3), ("dynamic", 4), ("static", 5), ("delayed", 6)],
)
def test_choices_trees_and_observations_are_equal(policy: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only chains have equal calls in both loops, so that the clock stands still with the other policies."""
    assert LIBRARY is not None
    python, compiled, tree_policy = opened(compiled=False), opened(), create_policy(policy)
    handle, text, chain = handle_of(compiled), a_text(seed), policy == "chain"
    assert isinstance(tree_policy, CompiledParts)
    rule: GrowthRule | None = tree_policy.compiled
    assert rule is not None
    growth = rule(handle, LIMITS, ACCEPT)
    assert growth is not None
    monkeypatch.setattr(auto, "time", Steps(seed, still=not chain))
    compiled._state.clock = CLOCK(Steps(seed, still=not chain).perf_counter)
    length, choices, skipped = 12, set[int](), 0
    while length < len(text) - LIMITS.depth - 1:
        known = np.array(text[:length], np.int32)
        tree = alone(tree_policy.grow(python, known, LIMITS, ObservedCost(), ACCEPT))
        other = grown_tree(LIBRARY, handle, growth, known, LIMITS)
        assert (other.tokens.tolist(), other.parents.tolist()) == (tree.tokens.tolist(), tree.parents.tolist())
        choices.add(python._state.drafting)
        skipped += any(one.unseen for one in python._state.observed)
        outcome = accepted_path(tree, text[length:])
        python.observe(tree, outcome)
        observe(handle, tree, outcome)
        assert observations(compiled._state, calls=chain) == observations(python._state, calls=chain)
        length += len(outcome.path)
    assert len(choices) > 2  # so that equality is no accident
    assert skipped > 3 or not chain


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def target(pair: Pair) -> Target:
    target = open_target(pair.large, limits=TEXT_LIMITS, threads=1)
    if type(target).__name__ != "CpuTarget":
        pytest.skip("the kernels were not built")
    return target


TEXT_LIMITS = Limits(nodes=8, depth=5, positions=90)
# Seconds of a pass by its rows: guesses cost hardly anything, or pay if most of them are right.
SHAPES: dict[str, Shape] = {"flat": lambda rows: 1 + 0.01 * rows, "steep": lambda rows: 1 + 0.35 * (rows - 1)}
FEW = (5, 7, 8, 9)  # tokens that texts are written with, so that the candidates find earlier text
REPETITIVE = SamplingConfig(temperature=0, logit_bias=tuple((token, 3.0) for token in FEW))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shape", "tree_nodes", "models"), [("flat", 0, 0), ("steep", 0, 0), ("steep", 3, 0), ("flat", 0, 1)]
)
def test_a_text_may_change_between_the_loops_from_round_to_round(
    pair: Pair, target: Target, shape: str, tree_nodes: int, models: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write texts in Python, in the library, and in both by turns; the candidates' observations are equal in the end.

    With ``tree_nodes`` the choice needs the seconds of larger passes than any tree has.
    """
    monkeypatch.setattr(autoregressive, "Adaptive", Willing)
    monkeypatch.setattr(ObservedCost, "seconds", lambda self, nodes, past: SHAPES[shape](nodes))
    sampler = Sampler(REPETITIVE, VOCAB)
    request = Request(
        prompt=np.zeros(1, np.int32),
        limits=TEXT_LIMITS,
        tree_nodes=tree_nodes,
        processor=sampler.distribution,
        sampler=sampler,
        likeliest=sampler.likeliest,
        policy=create_policy("chain"),
        verifier=create_verifier("match", 0),
        random=PositionRandom.seeded(0),
        greedy=True,
        ahead_seconds=0.0,
    )
    original, results = compiled_rounds.run_rounds, list[tuple[object, ...]]()
    for turn in (0, 1, 2, 3):  # every turn-th step runs in the library; 0: none
        calls, compiled = 0, 0

        def run(plans: Any, turn: int = turn) -> Any:
            nonlocal calls, compiled
            calls += 1
            done = original(plans) if turn and calls % turn == 0 else None
            compiled += done is not None
            return done

        monkeypatch.setattr(autoregressive, "run_rounds", run)
        clock = Steps(5)
        monkeypatch.setattr(auto, "time", clock)
        drafter = auto.create([pair.small] * models, threads=1, samples=2)  # with `stand`
        decoder = open_decoder(target, target.open(TEXT_LIMITS), drafter=drafter, vocab_limit=VOCAB)
        draft = decoder.open_draft(TEXT_LIMITS)
        assert isinstance(draft, auto._AutoDraft)
        draft._state.clock = CLOCK(clock.perf_counter)
        engine = Engine(target, rows=TEXT_LIMITS.nodes, cost=decoder.cost)
        tokens = []
        for seed in range(3):
            prompt = np.random.default_rng(seed).choice(np.array(FEW, np.int32), 16)
            sequence = decoder.start(replace(request, prompt=prompt))
            tokens += [token.id for token in engine.write(sequence)]
        decoder.state.close()
        assert compiled == (calls // turn if turn else 0)
        results.append((tokens, observations(draft._state)))
        assert all(one.judged > 0 for one in draft._state.observed)
    assert all(result == results[0] for result in results)


def test_a_draft_with_a_candidate_that_is_not_compiled_is_not_compiled() -> None:
    class Silent:
        def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
            return [Sparse(ids=np.zeros(0, np.int32), probs=np.zeros(0, np.float32)) for _ in nodes]

        def observe(self, tree: TokenTree, outcome: Outcome) -> None:
            return None

    draft, silent = opened(), Silent()
    handle, usual = handle_of(draft), draft._candidates[2].draft
    draft._candidates[2].draft = silent
    assert draft.compiled is None
    draft._candidates[2].draft = usual
    renewed = handle_of(draft)
    assert renewed is not handle
    assert handle_of(draft) is renewed  # rounds go on as long as the draft is the same


def test_a_draft_has_several_guesses_if_a_candidate_has() -> None:
    """The policies couple the guesses of a draft that is not certain with the text's random numbers."""
    assert handle_of(opened(("copy", "ngram"))).certain
    assert not handle_of(opened(("copy", "stand"))).certain
    assert handle_of(opened()).prices == LIMITS.depth + 1


def test_a_draft_that_is_better_alone_makes_the_choice_so() -> None:
    draft = opened(("copy", "ngram"))
    assert not handle_of(draft).alone
    draft._handle.parts[1].alone, draft._handle = True, None  # type: ignore[union-attr]
    assert handle_of(draft).alone


def test_calls_of_the_library_prepare_and_finish_all_candidates() -> None:
    class Watched(DraftHandle):
        full = False

        def reserve(self, length: int) -> None:
            if self.full:
                raise CacheFullError("no room")
            seen.append(("reserve", self.address, length))

        def finish(self) -> None:
            seen.append(("finish", self.address, 0))

    draft, seen = opened(("copy", "ngram")), list[tuple[str, int, int]]()
    handle = handle_of(draft)
    assert isinstance(handle, AutoHandle)
    other = Watched(2, certain=True)
    handle.parts = Watched(1, certain=True), other
    handle.reserve(7)
    handle.finish()
    assert seen == [("reserve", 1, 7), ("reserve", 2, 7), ("finish", 1, 0), ("finish", 2, 0)]
    seen.clear()
    other.full = True
    with pytest.raises(CacheFullError):
        handle.reserve(8)
    assert seen == [("reserve", 1, 8), ("finish", 1, 0)]


def test_choices_of_the_library_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert LIBRARY is not None
    caplog.set_level("DEBUG")  # the level INFO has a message in a second
    draft = opened(("copy", "ngram"))
    draft._state.clock = CLOCK(Steps(0, still=True).perf_counter)
    handle = handle_of(draft)
    for text, message in (([3, 4], "no drafter guesses; by"), ([4, 5, 6, 4, 5], "copy guesses; by")):
        for _ in range(2):
            grown_tree(LIBRARY, handle, CompiledGrowth(CHAIN), np.array(text, np.int32), LIMITS)
            handle.finish()
        assert [record.getMessage()[: len(message)] for record in caplog.records] == [message]
        caplog.clear()


def test_the_candidates_of_a_draft_in_use_are_not_closed() -> None:
    draft = opened(("ngram",))
    handle = handle_of(draft)
    del draft
    gc.collect()
    text = np.array([4, 5, 6, 4, 5], np.int32)
    assert LIBRARY is not None
    assert grown_tree(LIBRARY, handle, CompiledGrowth(CHAIN), text, LIMITS).tokens.tolist()[:2] == [5, 6]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": None}, "auto must have at least one candidate"),
        ({"count": 0}, "auto must have at least one candidate"),
        ({"drafting": 2}, "auto cannot choose a candidate that it does not have"),
        ({"drafting": -2}, "auto cannot choose a candidate that it does not have"),
    ],
)
def test_candidates_that_are_none_are_refused(change: dict[str, int | None], message: str) -> None:
    draft = opened(("copy", "ngram"))
    for name, value in change.items():
        setattr(draft._state, name, value)
    assert_refused(draft._state, message)


@pytest.mark.parametrize(
    ("change", "vocab", "depth", "message"),
    [
        ({"draft": None}, 30, 4, "candidate 1 of auto has no draft"),
        ({"calls": -1}, 30, 4, "candidate 1 of auto has a negative number of calls"),
        ({}, 29, 4, "candidate 0 of auto has a larger vocabulary, or guesses less deep than auto"),
        ({}, 30, 5, "candidate 0 of auto has a larger vocabulary, or guesses less deep than auto"),
        ({}, 0, 4, "a draft cannot have these sizes"),
        ({}, 30, -1, "a draft cannot have these sizes"),
    ],
)
def test_a_candidate_that_does_not_fit_is_refused(
    change: dict[str, int | None], vocab: int, depth: int, message: str
) -> None:
    draft = opened(("copy", "ngram"))
    for name, value in change.items():
        setattr(draft._state.observed[1], name, value)
    assert_refused(draft._state, message, vocab, depth)


def assert_refused(state: AutoArguments, message: str, vocab: int = 30, depth: int = 4) -> None:
    assert LIBRARY is not None
    assert LIBRARY.function("edgedec_loop_auto_open")(addressof(state), vocab, depth) is None
    with pytest.raises(EdgedecError, match=f"^compiled loop: {message}$"):
        LIBRARY.check(-1)
