"""Compare the compiled loop with Python's, which is its definition: equal guesses, trees, distributions, paths and texts."""

from __future__ import annotations

import itertools
import re
import sys
import weakref
from collections.abc import Callable, Sequence
from ctypes import addressof, c_int64
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError, UsageError
from edgedec.plugins import load, names
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime import loop
from edgedec.runtime.base.pause import Pause
from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder, open_decoder
from edgedec.runtime.drafters._releasing import ReleasingDrafter
from edgedec.runtime.drafting import alone
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.loop.drafts import CompiledDraft
from edgedec.runtime.loop.inputs import SUBMIT
from edgedec.runtime.loop.rounds import RoundsCall
from edgedec.runtime.loop.sampling import CompiledSampling
from edgedec.runtime.planning.speculation import create_policy, create_verifier
from edgedec.runtime.protocols import F32, I32, Draft, Limits, Outcome, Request, Target, TargetInfo, TokenTree
from edgedec.runtime.rounds import compiled as compiled_rounds
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.sampling.target_top import top_taps
from edgedec.runtime.targets import open_target
from edgedec.runtime.verifiers.match import Match
from tests.conformance.support.library import grown_tree
from tests.runtime.support.bench_decoders import PROMPT, VOCAB, make_pair
from tests.runtime.trees.support.fake_draft import FakeCost
from tests.support.no_collector import no_collector

LIBRARY = loop.load()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the loop's library was not built (no C++ compiler)")
THOROUGH = pytest.mark.thorough
DRAFTERS = ("ngram", "copy", "stand", "trigram")
CHOOSING = (*DRAFTERS, "auto")  # the trees of ``auto`` depend on the clock: tests/conformance/test_compiled_auto.py
POLICIES = tuple(name for name in names("edgedec.runtime.trees") if isinstance(create_policy(name), CompiledParts))
INFO = TargetInfo(vocab=30, tokenizer_hash="0" * 64, positions=64, taps=(), masks="any", batch_invariant=True)
TEXT_LIMITS = Limits(nodes=8, depth=5, positions=90)
ROOM = Limits(nodes=16, depth=6, positions=64)


def drafts(name: str) -> tuple[Draft, Draft]:
    """Return the draft of Python's loop and the compiled one."""
    drafter = load("edgedec.runtime.drafters", name).create()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "load", lambda: None)
        python = drafter.open(INFO, ROOM, None)
    compiled = drafter.open(INFO, ROOM, None)
    assert isinstance(compiled, CompiledDraft)
    assert not isinstance(python, CompiledDraft)
    return python, compiled


def equal_trees(trees: Sequence[TokenTree]) -> bool:
    return all(
        tree.tokens.tolist() == trees[0].tokens.tolist() and tree.parents.tolist() == trees[0].parents.tolist()
        for tree in trees
    )


class Asked:
    """A policy whose growth in the library is for as many trees as it says, if their limits stay."""

    def __init__(self, policy: Any) -> None:
        self._policy, self._limits, self._left = policy, ROOM, 0
        self._growth: Any = None

    def tree(self, draft: Draft, text: I32, limits: Limits, accept: F32, costs: Sequence[float]) -> TokenTree:
        """Return the tree that the library grows by itself. ``costs`` are the seconds of passes by number of nodes."""
        assert LIBRARY is not None
        assert isinstance(draft, CompiledDraft)
        if self._left <= 0 or limits != self._limits:
            self._growth = self._policy.compiled(draft.compiled, limits, accept)
            self._limits, self._left = limits, self._growth.rounds
        self._left -= 1
        return grown_tree(LIBRARY, draft.compiled, self._growth, text, limits, costs=costs)


class Ticks:
    """A clock that advances at every look at it, so that both loops must look equally often."""

    def __init__(self) -> None:
        self._looks = 0

    def __call__(self) -> float:
        self._looks += 1
        return (self._looks + self._looks % 3) / 256


def measuring_policy(name: str) -> Any:
    """Return the policy ``name``; one that measures has a clock of its own."""
    return load("edgedec.runtime.trees", name).create(clock=Ticks()) if name == "hardware" else create_policy(name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", DRAFTERS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_drafts_guess_and_grow_the_same_trees(name: str, data: st.DataObject) -> None:
    pair = drafts(name)
    token = st.integers(-1, 7)
    text = np.array(data.draw(st.lists(token, min_size=1, max_size=40)), np.int32)
    if data.draw(st.booleans()):
        text = np.tile(text, 2)
    policies = {policy: (measuring_policy(policy), Asked(measuring_policy(policy))) for policy in POLICIES}
    for _ in range(data.draw(st.integers(1, 8))):
        limits = replace(ROOM, nodes=data.draw(st.integers(2, 16)), depth=data.draw(st.integers(1, 6)))
        rates = data.draw(st.lists(st.sampled_from([0.125, 0.25, 0.5, 0.75]), min_size=8, max_size=8))
        accept = np.tile(np.array(rates, np.float32), (ROOM.depth, 1))
        if data.draw(st.booleans()):
            accept *= np.random.default_rng(data.draw(st.integers(0, 99))).random(accept.shape, np.float32)
        growing = st.lists(st.sampled_from([0.0, 0.125, 0.3, 2.0]), min_size=16, max_size=16)
        costs = (data.draw(st.sampled_from([0.0, 0.01, 1.0, 1e18])) * (1 + np.cumsum(data.draw(growing)))).tolist()
        for policy, (one, other) in policies.items():
            trees = [alone(one.grow(pair[0], text, limits, FakeCost(costs), accept))]
            trees.append(other.tree(pair[1], text, limits, accept, costs))
            assert equal_trees(trees), policy
        tree = trees[0]
        every = np.arange(len(tree.tokens), dtype=np.int32)
        for one, other in zip(*(draft.expand(text, tree, every) for draft in pair), strict=True):
            assert (one.ids.tolist(), one.probs.tolist()) == (other.ids.tolist(), other.probs.tolist())
        path = [0]
        while (children := np.flatnonzero(tree.parents == path[-1])).size and data.draw(st.booleans()):
            path.append(int(data.draw(st.sampled_from(children.tolist()))))
        taps = {}
        if data.draw(st.booleans()):
            rows: list[F32] = [np.array(data.draw(st.permutations(range(30))), np.float32) for _ in path]
            taps = dict(top_taps(rows, logits=True))
        outcome = Outcome(path=np.array(path, np.int32), next_token=data.draw(st.integers(0, 7)), taps=taps)
        for draft in pair:
            draft.observe(tree, outcome)
        text = np.concatenate([text, tree.tokens[path[1:]], [outcome.next_token]]).astype(np.int32)
        if data.draw(st.integers(0, 5)) == 0:  # another text, or one that ends earlier
            text = text[: 1 + len(text) // 2]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", POLICIES)
def test_trees_after_a_text_of_few_words_are_equal(name: str, seed: int) -> None:
    """Every node has many guesses, of all probabilities, and the policies learn for a hundred rounds.

    Measured seconds need not increase with the number of nodes.
    """
    rng = np.random.default_rng(seed)
    pair, one, other = drafts("trigram"), measuring_policy(name), Asked(measuring_policy(name))
    count = (7, 7, 20)[seed]  # the last one: more words after a pair of words than a table holds
    words = 0.5 * rng.dirichlet(np.ones(count)) + 0.5 * np.eye(count)[0]
    text = rng.choice(count, 500, p=words).astype(np.int32)
    for number in range(100):
        limits = replace(ROOM, nodes=int(rng.integers(2, 17)), depth=int(rng.integers(1, 7)))
        accept = rng.random((ROOM.depth, 8), np.float32) ** np.float32(rng.choice([0.2, 1.0]))
        scale = (0.5, 0.02, 0.001, 1e18, 0.0)[number // 10 % 5]  # seconds of a pass
        steps = (
            [0.0, 0.05, 0.6] if number > 1 else [60.0]
        )  # at first no guess is worth its row, and the draft is not asked
        costs = (scale * (1 + np.cumsum(rng.choice(steps, 16)) * rng.choice([1.0, 0.1], 16))).tolist()
        tree = alone(one.grow(pair[0], text, limits, FakeCost(costs), accept))
        assert equal_trees([tree, other.tree(pair[1], text, limits, accept, costs)])
        path = [0]
        while (children := np.flatnonzero(tree.parents == path[-1])).size and rng.random() < 0.7:
            path.append(int(rng.choice(children)))
        outcome = Outcome(path=np.array(path, np.int32), next_token=int(rng.choice(count, p=words)))
        for draft in pair:
            draft.observe(tree, outcome)
        text = np.concatenate([text, tree.tokens[path[1:]], [outcome.next_token]]).astype(np.int32)


CONFIGS = st.builds(
    SamplingConfig,
    temperature=st.sampled_from([0.0, 0.1, 0.8, 1.7, 1e-30]),
    top_k=st.sampled_from([0, 1, 3, 40]),
    top_p=st.sampled_from([0.0, 0.3, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.6, 1.0]),
    repeat_penalty=st.sampled_from([1.0, 0.7, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25]),
    repeat_last_n=st.sampled_from([-1, 0, 2, 64]),
    logit_bias=st.lists(st.tuples(st.integers(0, 45), st.sampled_from([-np.inf, 1.5, -3.0, 1e39])), max_size=3).map(
        tuple
    ),
    seed=st.integers(0, 2**64 - 1),
)


def test_the_library_has_every_sampling_option() -> None:
    """Compiled rounds would ignore an option that the library lacks, in silence."""
    compiled = {name for name, *_ in CompiledSampling._fields_} | {"logit_bias"}
    assert {field.name for field in fields(SamplingConfig)} - compiled == set()


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(config=CONFIGS, data=st.data())
def test_distributions_and_accepted_paths_are_equal_to_the_last_bit(
    config: SamplingConfig, data: st.DataObject
) -> None:
    assert LIBRARY is not None
    vocab = data.draw(st.integers(1, 40))
    sampler = Sampler(config, data.draw(st.integers(1, vocab + 2)))
    random = PositionRandom(seed=config.seed, sample=data.draw(st.integers(0, 3)))
    size = data.draw(st.integers(1, 8))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    logits = rng.choice([1.5, 4.0, 30.0]) * rng.normal(size=(size, vocab)).astype(np.float32)
    if data.draw(st.booleans()):  # equal logits, infinite ones, and the largest
        special = rng.choice(
            np.array([0.0, 1.0, 1.0000001, -2.5, -np.inf, 88.0, 3.4e38], np.float32), size=logits.shape
        )
        logits = np.where(rng.random(logits.shape) < 0.6, special, logits)
    logits = np.ascontiguousarray(logits, np.float32)
    if data.draw(st.integers(0, 9)) == 0:
        logits[0, data.draw(st.integers(0, vocab - 1))] = data.draw(st.sampled_from([np.nan, np.inf]))
    text = np.array(data.draw(st.lists(st.integers(-2, vocab), min_size=1, max_size=70)), np.int32)
    parents = np.array([-1, *(data.draw(st.integers(0, node - 1)) for node in range(1, size))], np.int32)
    tree = TokenTree(
        tokens=np.array(data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)), np.int32),
        parents=parents,
        draft={},
    )

    def distribution(node: int) -> F32:
        path: list[int] = []
        at = node
        while at > 0:
            path.insert(0, int(tree.tokens[at]))
            at = int(parents[at])
        return sampler.distribution(logits[node], np.array([*text, *path], np.int32))

    options, probs = CompiledSampling(sampler, random), np.empty(vocab, np.float32)
    before = logits.copy()
    arguments = (addressof(options), logits.ctypes.data, vocab, text.ctypes.data, len(text), probs.ctypes.data)
    result = LIBRARY.call("edgedec_loop_distribution", *arguments)
    try:
        expected = distribution(0).copy()
    except (DeviceError, UsageError):
        assert result == loop.NO_TOKEN
        return
    assert result == 0
    assert probs.tobytes() == expected.tobytes()
    path, count = np.empty(size, np.int32), c_int64()
    position = data.draw(st.integers(0, 2000))
    token = LIBRARY.call(
        "edgedec_loop_verify",
        *(addressof(options), tree.tokens.ctypes.data, parents.ctypes.data, size, logits.ctypes.data, vocab),
        *(text.ctypes.data, len(text), position, path.ctypes.data, addressof(count)),
    )
    assert logits.tobytes() == before.tobytes()
    try:
        outcome = Match().accept(tree, distribution, random, position)
    except (DeviceError, UsageError):
        assert token == loop.NO_TOKEN
    else:
        assert (token, path[: count.value].tolist()) == (outcome.next_token, outcome.path.tolist())


# Models with recurrent states of every kind: heads with one factor, with rates of their own, and delta nets.
RECURRENT: dict[str, dict[str, Any]] = {
    "mamba2": {
        **{"model_type": "mamba2", "hidden_size": 32, "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2},
        **{"num_hidden_layers": 2, "expand": 2},
    },
    "hybrid": {
        **{"model_type": "qwen3_5_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "full_attention_interval": 2},
        **{
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    },
    "sambay": {
        **{"model_type": "phi4flash", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 8},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 20, "mamba_d_state": 4},
    },
}


def bundle_of(name: str, folder: Path) -> Bundle:
    """Return a small random bundle with attention in every layer, or one of ``RECURRENT``."""
    if name == "attention":
        return make_pair(folder).large
    shape = RECURRENT[name] | {"vocab_size": VOCAB, "max_position_embeddings": 96}
    write_random_bundle(folder / name, shape, "int8", seed=3)
    return Bundle.open(folder / name)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Limits], Target]:
    """Return a function that opens a model, once for the same limits."""

    @cache
    def opened(name: str, limits: Limits) -> Target:
        return open_target(bundle_of(name, tmp_path_factory.mktemp("bundles")), limits=limits, threads=1)

    return opened


@pytest.fixture
def target(targets: Callable[[str, Limits], Target]) -> Target:
    return targets("attention", TEXT_LIMITS)


WIDE = replace(TEXT_LIMITS, cache_rows=800, batch_rows=32)  # limits of several texts


@pytest.fixture
def shared(targets: Callable[[str, Limits], Target]) -> Target:
    target = targets("attention", WIDE)
    if type(target).__name__ != "CpuTarget":
        pytest.skip("the kernels were not built")
    return target


def request(config: SamplingConfig, policy: str, **settings: Any) -> Request:
    """Return a request whose parts are all compiled."""
    sampler = Sampler(config, VOCAB)
    return Request(
        prompt=PROMPT,
        limits=TEXT_LIMITS,
        processor=sampler.distribution,
        sampler=sampler,
        likeliest=sampler.likeliest if config.temperature == 0 else None,
        policy=create_policy(policy),
        verifier=create_verifier("match", config.temperature),
        random=PositionRandom.seeded(config.seed),
        greedy=config.temperature == 0,
        **settings,
    )


TEXTS = {
    "greedy": SamplingConfig(temperature=0),
    "sampled": SamplingConfig(temperature=1.2, seed=7),
    "changed": SamplingConfig(
        temperature=0.9, seed=3, repeat_penalty=1.4, frequency_penalty=0.3, top_k=0, logit_bias=((5, 2.0), (7, -np.inf))
    ),
}


def write(target: Target, drafter: str, wish: Request) -> tuple[list[int], AutoregressiveDecoder, bool]:
    """Return the text of a request, its decoder, and whether the rounds were compiled."""
    decoder = open_decoder(target, target.open(TEXT_LIMITS), drafter=drafter, vocab_limit=VOCAB)
    sequence = decoder.start(wish)
    tokens = [token.id for token in Engine(target, rows=TEXT_LIMITS.nodes, cost=decoder.cost).write(sequence)]
    decoder.state.close()
    return tokens, decoder, sequence._compiled is not None


@pytest.mark.parametrize("drafter", ["none", "ngram", *(pytest.param(name, marks=THOROUGH) for name in CHOOSING[1:])])
@pytest.mark.parametrize("name", ["greedy", *(pytest.param(name, marks=THOROUGH) for name in ("sampled", "changed"))])
def test_texts_are_equal(target: Target, drafter: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_texts(target, drafter, name, monkeypatch)


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("drafter", ["none", *CHOOSING])
@pytest.mark.parametrize("name", ["greedy", "sampled"])
@pytest.mark.parametrize("model", RECURRENT)
def test_texts_of_recurrent_states_are_equal(
    targets: Callable[[str, Limits], Target],
    model: str,
    drafter: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = targets(model, TEXT_LIMITS)
    if type(target).__name__ != "CpuTarget":
        pytest.skip("the kernels were not built")
    check_texts(target, drafter, name, monkeypatch)


def check_texts(target: Target, drafter: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the texts of both loops. The policies take turns, because no text depends on them."""
    config, free = TEXTS[name], target.free_rows
    with monkeypatch.context() as patch:
        patch.setattr(loop, "load", lambda: None)
        expected, _, compiled = write(target, drafter, request(config, "chain"))
        assert not compiled
    assert len(PROMPT) + len(expected) == TEXT_LIMITS.positions + 1
    for policy, seconds in zip(POLICIES, itertools.cycle((0.0, 0.004, 1e9)), strict=False):
        actual, decoder, compiled = write(target, drafter, request(config, policy, ahead_seconds=seconds))
        assert compiled == (type(target).__name__ == "CpuTarget")  # the kernels were built, too
        assert actual == expected
        assert decoder.rounds.count <= len(actual)
        assert decoder.cached == [*PROMPT.tolist(), *actual][: TEXT_LIMITS.positions]
        assert decoder.state.length == 0  # closed
        assert target.free_rows == free


class Watched:
    """A target that passes on everything, and counts the passes that it sees."""

    def __init__(self, target: Target) -> None:
        self._target, self.passes = target, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def submit(self, work: Any) -> Any:
        self.passes += len(work)
        return self._target.submit(work)


def test_a_target_around_another_one_sees_every_pass(target: Target) -> None:
    watched, wish = Watched(target), request(TEXTS["greedy"], "chain")
    tokens, _, compiled = write(cast(Target, watched), "none", wish)
    assert (tokens, compiled) == (write(target, "none", wish)[0], False)
    assert watched.passes >= len(tokens)


def test_no_pass_runs_after_the_last_token_that_the_caller_takes(target: Target) -> None:
    expected, _, _ = write(target, "none", request(TEXTS["greedy"], "chain"))
    ends = (expected[6],)
    first = expected.index(expected[6]) + 1
    for bounds, count in (({"most_tokens": 9}, 9), ({"ends": ends}, first), ({"ends": ends, "most_tokens": 2}, 2)):
        decoder = open_decoder(target, target.open(TEXT_LIMITS), vocab_limit=VOCAB)
        sequence = decoder.start(request(TEXTS["greedy"], "chain", ahead_seconds=1e9, **bounds))
        engine = Engine(target, rows=TEXT_LIMITS.nodes, cost=decoder.cost)
        engine.add(sequence)
        tokens: list[int] = []
        while len(tokens) < count:
            (part,) = engine.step()
            tokens += [token.id for token in part.tokens]
        assert tokens == expected[:count]
        decoder.state.close()


def test_no_python_runs_between_the_rounds_of_a_call(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _, _ = write(target, "ngram", request(TEXTS["greedy"], "chain"))
    decoder = open_decoder(target, target.open(TEXT_LIMITS), drafter="ngram", vocab_limit=VOCAB)
    sequence = decoder.start(request(TEXTS["greedy"], "chain", ahead_seconds=1e9))
    engine, tokens = Engine(target, rows=TEXT_LIMITS.nodes, cost=decoder.cost), list[int]()
    engine.add(sequence)
    while not tokens:  # the prompt is read by Python
        tokens += [token.id for part in engine.step() for token in part.tokens]
    calls: list[str] = []
    original = RoundsCall.run

    def profiled(call: RoundsCall, *arguments: Any) -> int:
        sys.setprofile(lambda frame, event, argument: calls.append(frame.f_code.co_name) if event == "call" else None)
        try:
            return original(call, *arguments)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(RoundsCall, "run", profiled)
    while not sequence.ended:
        calls.clear()
        (part,) = engine.step()
        tokens += [token.id for token in part.tokens]
        assert calls.count("run") == 1
        assert set(calls) <= {"run", "check", "<listcomp>", "<genexpr>"}
    assert tokens == expected
    decoder.state.close()


def test_a_failure_in_the_middle_of_a_call_loses_no_token(target: Target) -> None:
    """The third pass finds a block that is not in the cache."""
    expected, _, _ = write(target, "none", request(TEXTS["greedy"], "chain"))
    decoder = open_decoder(target, target.open(TEXT_LIMITS), vocab_limit=VOCAB)
    sequence = decoder.start(request(TEXTS["greedy"], "chain", ahead_seconds=1e9))
    engine, tokens = Engine(target, rows=TEXT_LIMITS.nodes, cost=decoder.cost), list[int]()
    engine.add(sequence)
    while len(tokens) < 2:  # a call has one round until the duration of a pass is known
        tokens += [token.id for part in engine.step() for token in part.tokens]
    inputs = target.compiled.inputs  # type: ignore[attr-defined]
    table, healthy = inputs.alive[5], SUBMIT(target.session.run_function)  # type: ignore[attr-defined]
    before, passes = len(tokens), 0

    def run(session: int, rows: int, results: int) -> int:
        nonlocal passes
        passes += 1
        if passes > 2:
            table[0] = 1 << 20
        return int(healthy(session, rows, results))

    inputs.arguments.submit = failing = SUBMIT(run)
    (part,) = engine.step()
    tokens += [token.id for token in part.tokens]
    assert part.error is None
    assert (len(tokens), tokens) == (before + 2, expected[: before + 2])
    assert decoder.state.length == len(PROMPT) + len(tokens) - 1
    (part,) = engine.step()
    assert isinstance(part.error, DeviceError)
    assert re.match(rf"a pass over {decoder.state.length} rows failed on cpu: .*block", str(part.error)), part.error
    assert (part.tokens, engine.sequences) == ((), ())
    inputs.arguments.submit = healthy
    del failing
    decoder.state.close()
    assert write(target, "none", request(TEXTS["greedy"], "chain"))[0] == expected  # the target goes on


def test_a_pause_ends_a_call_after_the_round_that_is_running(target: Target) -> None:
    expected, _, _ = write(target, "none", request(TEXTS["greedy"], "chain"))
    pause = Pause()
    decoder = open_decoder(target, target.open(TEXT_LIMITS), vocab_limit=VOCAB)
    sequence = decoder.start(request(TEXTS["greedy"], "chain", ahead_seconds=1e9, pause=pause))
    engine, tokens = Engine(target, rows=TEXT_LIMITS.nodes, cost=decoder.cost), list[int]()
    engine.add(sequence)

    def step() -> int:
        (part,) = engine.step()
        tokens.extend(token.id for token in part.tokens)
        return len(part.tokens)

    while len(tokens) < 2:  # a call has one round until the duration of a pass is known
        step()
    inputs = target.compiled.inputs  # type: ignore[attr-defined]
    usual, passes = SUBMIT(target.session.run_function), 0  # type: ignore[attr-defined]

    def run(session: int, rows: int, results: int) -> int:
        nonlocal passes
        passes += 1
        if passes == 3:
            pause.set()
        return int(usual(session, rows, results))

    inputs.arguments.submit = pausing = SUBMIT(run)
    assert [step(), step(), step()] == [3, 1, 1]  # it was not cleared
    pause.clear()
    assert step() > 3
    inputs.arguments.submit = usual
    del pausing
    assert tokens == expected[: len(tokens)]
    decoder.state.close()


def test_a_text_beside_one_that_is_read_while_it_is_written_has_as_short_calls(shared: Target) -> None:
    decoders = [open_decoder(shared, shared.open(WIDE), vocab_limit=VOCAB) for _ in range(2)]
    engine = Engine(shared, rows=32, cost=decoders[0].cost)
    for decoder, seconds in zip(decoders, (1e9, 0.0), strict=True):
        wish = request(TEXTS["greedy"], "chain", ahead_seconds=seconds)
        engine.add(decoder.start(replace(wish, limits=replace(TEXT_LIMITS, depth=0))))  # no guesses
    while engine.passes < 12:
        before = engine.passes
        engine.step()
        assert engine.passes <= before + 1
    engine.remove(engine.sequences[1])
    engine.step()
    assert engine.passes > before + 4
    for decoder in decoders:
        decoder.state.close()


def write_together(target: Target, drafter: str, wishes: Sequence[Request]) -> tuple[list[list[int]], int]:
    """Return texts that begin one after another and are written together, and the number of compiled steps."""
    decoders = [open_decoder(target, target.open(WIDE), drafter=drafter, vocab_limit=VOCAB) for _ in wishes]
    engine = Engine(target, rows=32, cost=decoders[0].cost)
    texts: dict[int, list[int]] = {}
    left, sequences, compiled = list(zip(decoders, wishes, strict=True)), {}, 0
    with pytest.MonkeyPatch.context() as patch:
        original = compiled_rounds.run_rounds

        def counted(*arguments: Any) -> Any:
            nonlocal compiled
            done = original(*arguments)
            compiled += done is not None
            return done

        patch.setattr(autoregressive, "run_rounds", counted)
        for step in range(10_000):
            if step % 5 == 0 and left:
                decoder, wish = left.pop(0)
                sequence = decoder.start(wish)
                sequences[sequence] = len(texts)
                texts[len(texts)] = []
                engine.add(sequence)
            if not engine.sequences and not left:
                break
            for part in engine.step():
                assert part.error is None
                number = sequences[part.sequence]  # type: ignore[index]
                texts[number] += [token.id for token in part.tokens]
                if 0 <= wishes[number].most_tokens <= len(texts[number]):
                    engine.remove(part.sequence)
    for decoder in decoders:
        decoder.state.close()
    return [texts[number] for number in sorted(texts)], compiled


@pytest.mark.thorough
@pytest.mark.parametrize("drafter", ["none", "ngram", "trigram"])
@pytest.mark.parametrize("model", RECURRENT)
def test_texts_of_recurrent_states_written_together_are_equal_to_those_alone(
    targets: Callable[[str, Limits], Target], model: str, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = targets(model, WIDE)
    check_together(target, drafter, monkeypatch)
    assert target.free_slots == len(target._arena.slots.buffer.slots)  # type: ignore[attr-defined]


@pytest.mark.parametrize("drafter", ["none", *(pytest.param(name, marks=THOROUGH) for name in CHOOSING)])
def test_texts_written_together_are_equal_to_those_alone(
    shared: Target, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_together(shared, drafter, monkeypatch)


def check_together(shared: Target, drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    free = shared.free_rows
    wishes = [
        request(TEXTS[name], policy, ahead_seconds=seconds, most_tokens=most)
        for name, policy, seconds, most in (
            ("greedy", "chain", 1.0, 60),
            ("sampled", "dynamic", 1.0, 24),
            ("changed", "delayed", 1.0, 50),
            ("greedy", "hardware", 1.0, 33),
        )
    ]
    with monkeypatch.context() as patch:
        patch.setattr(loop, "load", lambda: None)
        expected = [write_together(shared, "none", [wish])[0][0][: wish.most_tokens] for wish in wishes]
    actual, compiled = write_together(shared, drafter, wishes)
    assert [text[: wish.most_tokens] for text, wish in zip(actual, wishes, strict=True)] == expected
    assert compiled > 5
    assert shared.free_rows == free


def test_a_draft_that_is_released_is_not_used_any_more(target: Target) -> None:
    expected, _, _ = write(target, "none", request(TEXTS["greedy"], "chain"))
    drafter = ReleasingDrafter(lambda: load("edgedec.runtime.drafters", "ngram").create())
    decoder = open_decoder(target, target.open(TEXT_LIMITS), drafter=drafter, vocab_limit=VOCAB)
    sequence = decoder.start(request(TEXTS["greedy"], "chain"))
    engine, tokens = Engine(target, rows=TEXT_LIMITS.nodes, cost=decoder.cost), list[int]()
    engine.add(sequence)
    for step, released in enumerate((False, True, False)):
        if released:
            drafter.release()
        elif step:
            drafter.restore()
        before = len(tokens)
        while len(tokens) < before + 12:
            (part,) = engine.step()
            assert part.error is None
            tokens += [token.id for token in part.tokens]
        assert (sequence._compiled is None) == released or step == 2
    assert tokens == expected[: len(tokens)]
    decoder.state.close()


def test_a_target_that_lent_its_inputs_is_freed_at_once(tmp_path: Path) -> None:
    target = open_target(make_pair(tmp_path).large, limits=TEXT_LIMITS, threads=1)
    write(target, "none", request(TEXTS["greedy"], "chain"))
    alive = weakref.ref(target)
    with no_collector():
        del target
        assert alive() is None


@pytest.mark.parametrize("model", RECURRENT)
def test_a_recurrent_state_that_is_not_committed_is_detected(
    targets: Callable[[str, Limits], Target], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the library's commits do nothing, so that every pass begins with the states of the prompt."""
    target = targets(model, TEXT_LIMITS)
    if type(target).__name__ != "CpuTarget":
        pytest.skip("the kernels were not built")
    expected, _, _ = write(target, "none", request(TEXTS["greedy"], "chain"))
    state = target.open(TEXT_LIMITS)
    arguments = target.compiled.inputs.arguments  # type: ignore[attr-defined]
    usual, arguments.commit = arguments.commit, None
    try:
        assert write(target, "none", request(TEXTS["greedy"], "chain"))[0] != expected
    finally:
        arguments.commit = usual
        state.close()
