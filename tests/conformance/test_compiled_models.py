"""Compare the draft model of the compiled loop with Python's, and the coupling of guesses: equal trees and texts."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.runtime import loop
from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.coupling import Coupled
from edgedec.runtime.decoders.autoregressive import open_decoder
from edgedec.runtime.drafters import auto, model
from edgedec.runtime.drafters._releasing import ReleasingDrafter
from edgedec.runtime.drafting import alone
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.loop.auto import CLOCK
from edgedec.runtime.loop.drafts import DraftHandle
from edgedec.runtime.loop.inputs import SUBMIT
from edgedec.runtime.loop.sampling import CompiledSampling
from edgedec.runtime.planning.speculation import create_policy, create_verifier
from edgedec.runtime.protocols import I32, Draft, Drafter, Limits, Request, Target, TargetInfo, TokenTree
from edgedec.runtime.rounds.compiled_text import compiled_text, say_python
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._cpu import CpuTarget
from tests.conformance.support.library import grown_tree
from tests.runtime.support.bench_decoders import PROMPT, VOCAB, Pair, make_pair
from tests.support.no_collector import no_collector

LIBRARY = loop.load()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the loop's library was not built (no C++ compiler)")
LIMITS = Limits(nodes=8, depth=5, positions=90)
WIDE = replace(LIMITS, cache_rows=800, batch_rows=32)
IDS = VOCAB - 2  # ids of the tokenizer
SAMPLED = SamplingConfig(temperature=1.2, seed=7)
PENALIZED = SamplingConfig(temperature=0.9, seed=3, repeat_penalty=1.4, top_k=9, logit_bias=((5, 2.0), (7, -np.inf)))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def target(pair: Pair) -> Target:
    target = open_target(pair.large, limits=WIDE, threads=1)
    if type(target).__name__ != "CpuTarget":
        pytest.skip("the kernels were not built")
    return target


def opened(bundle: Bundle, limits: Limits = LIMITS, *, compiled: bool = True) -> Draft:
    """Return a draft, in the library or in Python."""
    info = TargetInfo(
        vocab=IDS, tokenizer_hash=bundle.tokenizer_hash, positions=500, taps=(), masks="any", batch_invariant=True
    )
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(loop, "load", lambda: None)
        draft = model.create(bundle, threads=1).open(info, limits, ObservedCost())
    assert isinstance(draft, CompiledParts)
    assert (draft.compiled is not None) == compiled
    return draft


def choosing(draft: Draft) -> Draft:
    """Return the draft ``auto`` that has this candidate alone."""
    drafter = cast(Drafter, SimpleNamespace(taps=(), open=lambda *_: draft))
    info = TargetInfo(vocab=IDS, tokenizer_hash="", positions=500, taps=(), masks="any", batch_invariant=True)
    chosen = auto._AutoDrafter({"model": drafter}).open(info, LIMITS, ObservedCost())
    chosen._state.clock = CLOCK(lambda: 0.0)
    return chosen


def likely(draft: Draft, text: I32, tree: TokenTree, nodes: I32) -> list[dict[int, float]]:
    return [
        dict(zip(guess.ids.tolist(), guess.probs.tolist(), strict=True)) for guess in draft.expand(text, tree, nodes)
    ]


def likely_in_library(draft: Draft, text: I32, tree: TokenTree, nodes: I32) -> list[dict[int, float]]:
    """Return the library's guesses, which take and leave the cache of the Python draft."""
    handle = draft.compiled  # type: ignore[attr-defined]
    handle.reserve(len(text) + len(tree.tokens))
    ids, probs = np.empty((len(nodes), 16), np.int32), np.empty((len(nodes), 16), np.float32)
    sizes = np.empty(len(nodes), np.int32)
    assert LIBRARY is not None
    arrays = (text, tree.tokens, tree.parents, nodes, ids, probs, sizes)
    at = [array.ctypes.data for array in arrays]
    try:
        LIBRARY.call(
            "edgedec_loop_draft_expand",
            *(handle.address, at[0], len(text), at[1], at[2], len(tree.tokens), at[3], len(nodes), *at[4:]),
        )
    finally:
        handle.finish()
    return [
        dict(zip(ids[row, :size].tolist(), probs[row, :size].tolist(), strict=True))
        for row, size in enumerate(sizes.tolist())
    ]


@pytest.fixture(scope="module")
def drafts(pair: Pair) -> tuple[Draft, Draft]:
    return opened(pair.small), opened(pair.small, compiled=False)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_guesses_are_equal_and_the_cache_is_shared(drafts: tuple[Draft, Draft], data: st.DataObject) -> None:
    """Let Python and the library take turns on one cache, over texts that go on, go back and begin anew."""
    both, python = drafts
    text = data.draw(st.lists(st.integers(0, IDS - 1), min_size=1, max_size=60))
    for _ in range(data.draw(st.integers(1, 6))):
        size = data.draw(st.integers(1, LIMITS.nodes))
        tokens = [text[-1], *data.draw(st.lists(st.integers(0, IDS), min_size=size - 1, max_size=size - 1))]
        parents = [-1, *(data.draw(st.integers(0, node - 1)) for node in range(1, size))]
        tree = TokenTree(tokens=np.array(tokens, np.int32), parents=np.array(parents, np.int32), draft={})
        nodes = np.array(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1))), np.int32)
        whole = np.array(text, np.int32)
        expected = likely(python, whole, tree, nodes)
        asked = data.draw(st.sampled_from([likely, likely_in_library]))
        for one, other in zip(asked(both, whole, tree, nodes), expected, strict=True):
            assert one == pytest.approx(other, rel=1e-5)
        if data.draw(st.booleans()):  # Python looks at another text, which may need no pass
            more = data.draw(st.lists(st.integers(0, IDS - 1), min_size=1, max_size=20))
            shared = text[: data.draw(st.integers(0, len(text)))]
            alone(both.reading(np.array([*shared, *more], np.int32)[: LIMITS.positions], 8))  # type: ignore[attr-defined]
        change = data.draw(st.integers(0, 5))
        if change == 0:
            text = text[: 1 + len(text) // 2]
        elif change == 1:
            text = data.draw(st.lists(st.integers(0, IDS - 1), min_size=1, max_size=20))
        else:  # a path of the tree is accepted, and a token follows
            node = data.draw(st.integers(0, size - 1))
            path: list[int] = []
            while node:
                path.insert(0, tokens[node])
                node = parents[node]
            if all(token < IDS for token in path):
                text = [*text, *path]
            text = [*text, data.draw(st.integers(0, IDS - 1))][: LIMITS.positions]


@pytest.mark.thorough
@pytest.mark.parametrize("config", [SAMPLED, PENALIZED], ids=["sampled", "penalized"])
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        *((name, False) for name in ("chain", "static", "dynamic", "delayed", "hardware")),
        ("static", True),
        ("dynamic", True),
    ],
)
def test_coupled_trees_are_equal(
    drafts: tuple[Draft, Draft], name: str, chosen: bool, config: SamplingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare the trees of a draft model, and of ``auto`` with it as the only candidate, for which no clock runs."""
    assert LIBRARY is not None
    if chosen:
        monkeypatch.setattr(auto, "time", SimpleNamespace(perf_counter=lambda: 0.0))
        drafts = (choosing(drafts[0]), choosing(drafts[1]))
    sampler, rng = Sampler(config, IDS), np.random.default_rng(5)
    accept = np.tile(np.array([0.5, 0.25, 0.125, 0.1, 0.1, 0.1, 0.1, 0.1], np.float32), (LIMITS.depth, 1))
    for random in (PositionRandom.seeded(config.seed), None):
        policy = Coupled(policy=create_policy(name), sampler=sampler, random=random, dropped=3)
        options = CompiledSampling(sampler, random or PositionRandom.seeded(0))
        different = 0
        for length in (1, 7, 30, 31, 44):
            text = rng.integers(0, IDS, length).astype(np.int32)
            expected = alone(policy.grow(drafts[1], text, LIMITS, ObservedCost(), accept))
            rule = policy.compiled
            assert rule is not None
            handle: DraftHandle = drafts[0].compiled  # type: ignore[attr-defined]
            growth = rule(handle, LIMITS, accept)
            assert growth is not None
            handle.reserve(length + LIMITS.nodes)
            tree = grown_tree(LIBRARY, handle, growth, text, LIMITS, options=options, dropped=3)
            handle.finish()
            assert tree.tokens.tolist() == expected.tokens.tolist()
            assert tree.parents.tolist() == expected.parents.tolist()
            plain = alone(create_policy(name).grow(drafts[1], text, LIMITS, ObservedCost(), accept))
            different += plain.tokens.tolist() != expected.tokens.tolist()
        assert different or random is None  # so the coupling was there


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("top_p", [0.9, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.05])
@pytest.mark.parametrize("allowed", [0, 1])
def test_a_bias_may_forbid_all_guesses(
    drafts: tuple[Draft, Draft], allowed: int, min_p: float, top_p: float, temperature: float
) -> None:
    """A draft all of whose likeliest tokens are forbidden makes no guess, and no error."""
    assert LIBRARY is not None
    text = np.arange(7, dtype=np.int32)
    root = TokenTree(tokens=text[-1:], parents=np.array([-1], np.int32), draft={})
    (guess,) = drafts[1].expand(text, root, np.zeros(1, np.int32))
    config = SamplingConfig(
        temperature=temperature,
        min_p=min_p,
        top_p=top_p,
        logit_bias=tuple((token, -np.inf) for token in guess.ids[allowed:].tolist()),
    )
    sampler, random = Sampler(config, IDS), PositionRandom.seeded(4)
    policy = Coupled(policy=create_policy("chain"), sampler=sampler, random=random)
    accept = np.full((LIMITS.depth, 8), 0.5, np.float32)
    limits = replace(LIMITS, nodes=2, depth=1)
    expected = alone(policy.grow(drafts[1], text, limits, ObservedCost(), accept))
    assert expected.tokens.tolist() == [text[-1], *guess.ids[:allowed].tolist()]
    rule, handle = policy.compiled, drafts[0].compiled  # type: ignore[attr-defined]
    assert rule is not None
    growth = rule(handle, limits, accept)
    assert growth is not None
    handle.reserve(20)
    options = CompiledSampling(sampler, random)
    assert (
        grown_tree(LIBRARY, handle, growth, text, limits, options=options).tokens.tolist() == expected.tokens.tolist()
    )
    handle.finish()


def test_a_released_drafter_frees_its_model_at_once(pair: Pair, target: Target) -> None:
    drafter = ReleasingDrafter(lambda: model.create(pair.small, threads=1))
    decoder = open_decoder(target, target.open(WIDE), drafter=drafter, vocab_limit=VOCAB)
    sequence = decoder.start(request(SAMPLED, "chain"))
    engine = Engine(target, rows=32, cost=decoder.cost)
    engine.add(sequence)
    for _ in range(6):
        engine.step()
    inner = decoder.open_draft(WIDE).inner  # type: ignore[attr-defined]
    assert inner.compiled is not None
    alive = [weakref.ref(inner._target), weakref.ref(inner._target.session), weakref.ref(inner.compiled)]
    del inner
    with no_collector():
        drafter.release()
        assert [one() for one in alive] == [None, None, None]
    decoder.state.close()


def request(config: SamplingConfig, policy: str, **settings: Any) -> Request:
    """Return a request whose parts are all compiled."""
    sampler, random = Sampler(config, VOCAB), PositionRandom.seeded(config.seed)
    grown = create_policy(policy)
    return Request(
        prompt=PROMPT,
        limits=WIDE,
        processor=sampler.distribution,
        sampler=sampler,
        likeliest=sampler.likeliest if config.temperature == 0 else None,
        policy=Coupled(policy=grown, sampler=sampler, random=random) if config.temperature else grown,
        verifier=create_verifier("match", config.temperature),
        random=random,
        greedy=config.temperature == 0,
        **settings,
    )


def write(target: Target, drafter: Any, wishes: Sequence[Request]) -> tuple[list[list[int]], list[bool]]:
    """Return texts that are written together, and for each whether the library knows its rounds."""
    decoders = [open_decoder(target, target.open(WIDE), drafter=drafter, vocab_limit=VOCAB) for _ in wishes]
    engine = Engine(target, rows=32, cost=decoders[0].cost)
    sequences = [decoder.start(wish) for decoder, wish in zip(decoders, wishes, strict=True)]
    texts: dict[object, list[int]] = {sequence: [] for sequence in sequences}
    for sequence in sequences:
        engine.add(sequence)
    while engine.sequences:
        for part in engine.step():
            if part.error is not None:
                raise part.error
            texts[part.sequence] += [token.id for token in part.tokens]
    for decoder in decoders:
        decoder.state.close()
    return list(texts.values()), [sequence._compiled is not None for sequence in sequences]


@pytest.mark.parametrize("config", [SamplingConfig(temperature=0), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("texts", [1, 3])
def test_texts_are_equal(pair: Pair, target: Target, config: SamplingConfig, texts: int) -> None:
    drafter = model.create(pair.small, threads=1)
    wishes = [
        request(config, policy, ahead_seconds=seconds)
        for policy, seconds in zip(("chain", "dynamic", "hardware"), (0.0, 0.004, 1e9), strict=True)
    ][:texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "load", lambda: None)
        expected, compiled = write(target, "none", wishes)
    assert compiled == [False] * texts
    assert write(target, drafter, wishes) == (expected, [True] * texts)


def test_a_draft_model_with_recurrent_states_drafts_in_python(pair: Pair, tmp_path: Any) -> None:
    shape: dict[str, Any] = {
        **{"model_type": "mamba2", "hidden_size": 32, "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2},
        **{"num_hidden_layers": 2, "expand": 2},
    }
    made = make_pair(tmp_path, **shape).small
    info = TargetInfo(
        vocab=IDS, tokenizer_hash=made.tokenizer_hash, positions=500, taps=(), masks="any", batch_invariant=True
    )
    draft = model.create(made, threads=1).open(info, LIMITS, ObservedCost())
    assert draft.compiled is None


@pytest.fixture
def failing(pair: Pair) -> Iterator[Callable[[int], Any]]:
    """Return a function that makes a drafter whose draft model gives NaN from a pass of the library on."""
    drafter = model.create(pair.small, threads=1)
    kept: list[Any] = []

    def after(passes: int) -> Any:
        loaded = drafter.open(
            TargetInfo(
                vocab=VOCAB,
                tokenizer_hash=pair.small.tokenizer_hash,
                positions=500,
                taps=(),
                masks="any",
                batch_invariant=True,
            ),
            LIMITS,
            ObservedCost(),
        )._target
        assert isinstance(loaded, CpuTarget)
        assert loaded.compiled is not None
        inputs, left = loaded.compiled.inputs, [passes]
        usual = SUBMIT(loaded.session.run_function)

        def run(session: int, rows: int, results: int) -> int:
            status = int(usual(session, rows, results))
            left[0] -= 1
            if left[0] < 0:
                inputs.logits[...] = np.nan
            return status

        inputs.arguments.submit = bad = SUBMIT(run)
        kept.extend([usual, bad, inputs])
        return drafter

    yield after
    for inputs in kept[2::3]:
        inputs.arguments.submit = kept[0]


@pytest.mark.parametrize("chosen", [False, True])
def test_a_draft_that_fails_in_the_library_loses_no_token(
    target: Target, failing: Callable[[int], Any], chosen: bool
) -> None:
    """Python's loop runs the rounds in which the library's draft fails, and the text goes on."""
    wish = request(SamplingConfig(temperature=0), "chain", ahead_seconds=1e9)
    expected, _ = write(target, "none", [wish])
    drafter = auto._AutoDrafter({"model": failing(7)}) if chosen else failing(7)
    assert write(target, drafter, [wish]) == (expected, [True])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"logprobs": 2}, "log-probabilities are wanted"),
        ({"verifier": create_verifier("typical", 0.8)}, "the verifier typical is not compiled"),
        (
            {"policy": create_policy("chain", np.random.default_rng(0))},
            "the tree policy chain is not compiled, or draws",
        ),
        ({"sampler": None}, "the text has a sampler of its own"),
        ({"top_k": 4}, "the target returns the 4 likeliest tokens"),
    ],
)
def test_the_reason_for_python_s_loop_is_said_once(
    pair: Pair, target: Target, change: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    say_python.cache_clear()
    caplog.set_level("INFO")
    for _ in range(2):
        decoder = open_decoder(
            target, target.open(WIDE), drafter=model.create(pair.small, threads=1), vocab_limit=VOCAB
        )
        draft, wish = decoder.open_draft(WIDE), replace(request(SAMPLED, "chain"), **change)
        assert compiled_text(target, wish, draft, WIDE, PROMPT, decoder.price) is None
        decoder.state.close()
    said = [record.getMessage() for record in caplog.records if "rounds run in Python" in record.getMessage()]
    assert len(said) == 1
    assert why in said[0]
