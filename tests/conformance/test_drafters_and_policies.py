"""Run one suite over every drafter and one over every tree policy: the promises of `protocols.py`."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.plugins import load, names
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.drafters import auto
from edgedec.runtime.drafting import alone
from edgedec.runtime.protocols import (
    I32,
    Draft,
    Drafter,
    Drafting,
    Limits,
    Outcome,
    Sparse,
    TargetInfo,
    TokenTree,
    TreePolicy,
)
from edgedec.runtime.rounds.ahead import Ahead, likeliest_path
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.rounds.statistics import Rounds
from edgedec.runtime.sampling.target_top import top_taps
from tests.support.no_collector import no_collector

VOCAB = 50
INFO = TargetInfo(
    vocab=VOCAB,
    tokenizer_hash="0" * 64,
    positions=256,
    taps=(),
    masks="any",
    batch_invariant=True,
)
DRAFTERS, POLICIES = "edgedec.runtime.drafters", "edgedec.runtime.trees"
_FOLDER = TemporaryDirectory()  # lives as long as this module


@cache
def tiny_bundle() -> Bundle:
    """Write a bundle for the drafters that are a model; it has the tokenizer that ``INFO`` names.

    Any smaller, and the Python objects of a target, which no footprint counts, would weigh more than its weights.
    """
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": VOCAB,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
    }
    path = Path(_FOLDER.name, "draft")
    write_random_bundle(path, config, "int8")
    bundle = Bundle.open(path)
    return replace(bundle, manifest=replace(bundle.manifest, tokenizer_hash=INFO.tokenizer_hash))


@pytest.fixture(autouse=True, scope="module")
def timeless() -> Iterator[None]:
    """Stop the clock, because a drafter that weighs the cost of its guesses would decide differently each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "time", SimpleNamespace(perf_counter=lambda: 0.0))
        yield


def create_drafter(name: str) -> Drafter:
    module = load(DRAFTERS, name)
    drafter: Drafter = module.create(tiny_bundle(), device="float_reference") if name == "model" else module.create()
    return drafter


def root(text: list[int]) -> TokenTree:
    return TokenTree(tokens=np.array(text[-1:], np.int32), parents=np.array([-1], np.int32), draft={})


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("name", names(DRAFTERS))
@given(text=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40))
def test_a_drafter_proposes_distributions_and_takes_outcomes(name: str, text: list[int]) -> None:
    drafter = create_drafter(name)
    limits = Limits(nodes=8, depth=4, positions=256)
    assert all(isinstance(size, int) and size >= 0 for size in drafter.footprint(limits).values())
    draft = drafter.open(INFO, limits, ObservedCost())
    ids, tree = np.array(text, np.int32), root(text)
    for _ in range(3):
        (guess,) = draft.expand(ids, tree, np.array([0], np.int32))
        assert len(guess.ids) == len(guess.probs) == len(set(guess.ids.tolist()))
        assert all(0 <= token < VOCAB for token in guess.ids)
        assert np.all(guess.probs > 0)
        assert guess.probs.sum() <= 1 + 1e-5
        draft.observe(tree, Outcome(path=np.array([0], np.int32), next_token=3))
        ids = np.append(ids, np.int32(3))
        tree = root(ids.tolist())


def open_draft(name: str, limits: Limits) -> Draft:
    return create_drafter(name).open(INFO, limits, ObservedCost())


@pytest.mark.parametrize("name", names(DRAFTERS))
def test_a_dropped_draft_is_gone_at_once(name: str) -> None:
    """A draft has rows of a cache, which nobody else gets as long as a list or a cycle holds it."""
    drafter = create_drafter(name)
    draft = drafter.open(INFO, Limits(nodes=8, depth=4, positions=256), ObservedCost())
    draft.expand(np.array([1, 2, 1], np.int32), root([1, 2, 1]), np.array([0], np.int32))
    alive = weakref.ref(draft)
    with no_collector():
        del draft
        assert alive() is None


def any_tree(rng: np.random.Generator, last: int, nodes: int) -> TokenTree:
    tokens = np.concatenate([[last], rng.integers(0, 4, nodes - 1)]).astype(np.int32)
    parents = np.array([-1, *(rng.integers(0, node) for node in range(1, nodes))], np.int32)
    return TokenTree(tokens=tokens, parents=parents, draft={})


def any_outcome(rng: np.random.Generator, tree: TokenTree) -> Outcome:
    """Draw a path from the root, and a token."""
    path = [0]
    while len(children := np.flatnonzero(tree.parents == path[-1])) and rng.random() < 0.7:
        path.append(int(rng.choice(children)))
    taps = top_taps(list(rng.dirichlet(np.ones(VOCAB), len(path)).astype(np.float32)), logits=False)
    return Outcome(path=np.array(path, np.int32), next_token=int(rng.integers(0, 4)), taps=taps)


def after(text: I32, tree: TokenTree, outcome: Outcome) -> I32:
    return np.concatenate([text, tree.tokens[outcome.path[1:]], [outcome.next_token]]).astype(np.int32)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("name", names(DRAFTERS))
@given(
    seed=st.integers(0, 2**32 - 1), span=st.sampled_from([(0, 1), (0, 3), (0, VOCAB), (-2, 2), (VOCAB - 2, VOCAB + 2)])
)
def test_every_node_of_any_tree_gets_a_distribution(name: str, seed: int, span: tuple[int, int]) -> None:
    """Replace texts by others between rounds; they hold prompt embeddings (negative) and ids of another vocabulary."""
    rng = np.random.default_rng(seed)
    draft = open_draft(name, Limits(nodes=8, depth=4, positions=64))
    for _ in range(5):
        text = rng.integers(*span, rng.integers(1, 100)).astype(np.int32)
        for _ in range(2):
            tree = any_tree(rng, int(text[-1]), int(rng.integers(1, 9)))
            nodes = rng.permutation(len(tree.tokens))[: rng.integers(0, 9)].astype(np.int32)
            guesses = draft.expand(text, tree, nodes)
            assert len(guesses) == len(nodes)
            for guess in guesses:
                assert guess.ids.dtype == np.int32
                assert guess.probs.dtype == np.float32
                assert len(guess.ids) == len(guess.probs) == len(set(guess.ids.tolist()))
                assert all(0 <= token < VOCAB for token in guess.ids)
                assert np.all(guess.probs > 0)
                assert not len(guess.ids) or guess.probs.sum() == pytest.approx(1, abs=1e-5)
            outcome = any_outcome(rng, tree)
            draft.observe(tree, outcome)
            text = after(text, tree, outcome)


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("name", names(DRAFTERS))
@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1))
def test_assumptions_leave_no_trace(name: str, seed: int) -> None:
    """Open two drafts of one sequence, and call one of them also with trees and texts that never come true."""
    rng = np.random.default_rng(seed)
    limits = Limits(nodes=8, depth=4, positions=64)
    plain, called = open_draft(name, limits), open_draft(name, limits)
    text = rng.integers(0, 4, rng.integers(1, 40)).astype(np.int32)
    for _ in range(8):
        tree = any_tree(rng, int(text[-1]), 6)
        nodes = np.arange(6, dtype=np.int32)
        for grown_tree, asked_about in ((root(text.tolist()), nodes[:1]), (tree, nodes)):
            guesses = plain.expand(text, grown_tree, asked_about)
            for plain_guess, called_guess in zip(guesses, called.expand(text, grown_tree, asked_about), strict=True):
                assert plain_guess.ids.tolist() == called_guess.ids.tolist()
                assert plain_guess.probs.tolist() == called_guess.probs.tolist()
        for _ in range(rng.integers(0, 3)):
            assumed = np.concatenate([text, rng.integers(0, 4, rng.integers(1, limits.depth + 2))]).astype(np.int32)
            size = int(rng.choice([1, 6]))
            called.expand(assumed, any_tree(rng, int(assumed[-1]), size), nodes[:size])
        outcome = any_outcome(rng, tree)
        plain.observe(tree, outcome)
        called.observe(tree, outcome)
        text = after(text, tree, outcome)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("policy", ["chain", "dynamic"])
@pytest.mark.parametrize("name", names(DRAFTERS))
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_tree_that_was_grown_ahead_and_dropped_leaves_no_trace(name: str, policy: str, seed: int) -> None:
    """Grow trees like a decoder; one that comes true is used by both drafts."""
    rng = np.random.default_rng(seed)
    limits = Limits(nodes=6, depth=4, positions=64)
    plain, called = open_draft(name, limits), open_draft(name, limits)

    def growing(draft: Draft, text: I32) -> Drafting[TokenTree]:
        made: TreePolicy = load(POLICIES, policy).create()
        return made.grow(draft, text, limits, ObservedCost(), np.ones((4, 1), np.float32))

    ahead = Ahead(called, positions=64, rounds=Rounds(), clock=lambda: 0.0)
    text = np.tile(rng.integers(0, 4, rng.integers(2, 6)), 4).astype(np.int32)  # so that there is something to guess
    while len(text) < 60:
        tree = ahead.take(text)
        fresh = alone(growing(plain, text))
        if tree is None:
            tree = alone(growing(called, text))
            assert tree.tokens.tolist() == fresh.tokens.tolist()
            assert tree.parents.tolist() == fresh.parents.tolist()
        outcome = any_outcome(rng, tree)
        if rng.random() < 0.5:  # text that will be assumed
            path = np.array(likeliest_path(tree), np.int32)
            assumed = np.concatenate([text, tree.tokens[path[1:]]])
            (guess,) = called.expand(assumed, root(assumed.tolist()), np.zeros(1, np.int32))
            token = int(guess.ids[guess.probs.argmax()]) if len(guess.ids) else 0
            outcome = Outcome(path=path, next_token=token)
        alone(ahead.assume(text, tree, partial(growing, called)))
        plain.observe(tree, outcome)
        called.observe(tree, outcome)
        text = after(text, tree, outcome)


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("positions", [64, 1024])
@pytest.mark.parametrize("name", names(DRAFTERS))
def test_a_draft_stays_within_its_footprint_for_any_length_of_the_text(name: str, positions: int) -> None:
    # Other threads of a run of tests allocate now and then; what the draft allocates comes back in each attempt.
    assert any(excess_bytes(name, positions) <= 0 for _ in range(3))


def excess_bytes(name: str, positions: int) -> int:
    """Return the most bytes of 250 rounds of a draft beyond its footprint; always the same rounds."""
    rng = np.random.default_rng(3)
    limits = Limits(nodes=16, depth=8, positions=positions)
    text = np.minimum(rng.zipf(1.3, positions), VOCAB).astype(np.int32) - 1  # tokens as uneven as words
    footprint = sum(create_drafter(name).footprint(limits).values())
    answers = 512 * limits.nodes  # bytes of the requested guesses, which belong to the caller
    # allocations that happen only once
    open_draft(name, limits).expand(text, any_tree(rng, 0, 4), np.arange(4, dtype=np.int32))
    tracemalloc.start()
    try:
        draft, own_bytes = open_draft(name, limits), 0  # bytes that are this test's own
        peak_bytes = 0
        for _ in range(250):
            mine = tracemalloc.get_traced_memory()[0]
            tree = any_tree(rng, int(text[-1]), limits.nodes)
            outcome = any_outcome(rng, tree)
            own_bytes += tracemalloc.get_traced_memory()[0] - mine
            tracemalloc.reset_peak()
            draft.expand(text, tree, np.arange(limits.nodes, dtype=np.int32))
            draft.observe(tree, outcome)
            peak_bytes = max(peak_bytes, tracemalloc.get_traced_memory()[1] - own_bytes)
            mine = tracemalloc.get_traced_memory()[0]
            text = after(text, tree, outcome)
            own_bytes += tracemalloc.get_traced_memory()[0] - mine
    finally:
        tracemalloc.stop()
    return peak_bytes - footprint - answers


class _Talkative:
    """Return ``width`` guesses at every node."""

    def __init__(self, width: int) -> None:
        self.width = width

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        probs = np.arange(self.width, 0, -1, dtype=np.float32)
        return [Sparse(ids=np.arange(self.width, dtype=np.int32), probs=probs / max(1, probs.sum())) for _ in nodes]

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        return None


@pytest.mark.parametrize("name", names(POLICIES))
@given(
    width=st.integers(0, 5), nodes=st.integers(1, 16), depth=st.integers(0, 12), is_drawn=st.booleans(), data=st.data()
)
def test_a_policy_grows_trees_within_the_limits(
    name: str, width: int, nodes: int, depth: int, is_drawn: bool, data: Any
) -> None:
    text = np.array(data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5)), np.int32)
    limits = Limits(nodes=nodes, depth=depth, positions=256)
    policy = load(POLICIES, name).create(np.random.default_rng(width)) if is_drawn else load(POLICIES, name).create()
    for _ in range(2):  # a policy may remember, but nothing that would break the next tree
        tree = alone(policy.grow(_Talkative(width), text, limits, ObservedCost(), np.ones((depth, 1), np.float32)))
        assert tree.tokens[0] == text[-1]
        assert tree.parents[0] == -1
        assert 1 <= len(tree.tokens) == len(tree.parents) <= nodes
        assert tree.tokens.dtype == tree.parents.dtype == np.int32
        depths = [0]
        for node in range(1, len(tree.tokens)):
            parent = int(tree.parents[node])
            assert 0 <= parent < node
            depths.append(depths[parent] + 1)
            assert tree.tokens[node] in tree.draft[parent].ids  # needed for residuals
        assert max(depths) <= depth
        pairs = list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
        assert tree.with_replacement or len(set(pairs)) == len(pairs)
        assert set(tree.draft) == {parent for parent, _ in pairs[1:]}
        _tells_whether_children_were_drawn(tree, is_drawn and width > 1)
        if width == 0 or depth == 0 or nodes == 1:
            assert len(tree.tokens) == 1
        else:
            assert len(tree.tokens) > 1


def _tells_whether_children_were_drawn(tree: TokenTree, is_drawn: bool) -> None:
    """Return whether the tree tells: chosen children are certain guesses, each with probability 1; drawn ones have
    their whole distribution.
    """
    for node, guess in tree.draft.items():
        children = tree.tokens[tree.parents == node].tolist()
        if is_drawn:
            assert guess.probs.sum() == pytest.approx(1)
        else:
            assert guess.probs.tolist() == [1.0] * len(children)
            assert guess.ids.tolist() == children


@pytest.mark.parametrize("name", names(POLICIES))
def test_a_policy_does_not_request_more_than_the_limits(name: str) -> None:
    """Check the draft's distributions at the depth limit too, which no node could use."""

    class _Strict(_Talkative):
        def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
            assert len(tree.tokens) < 6
            for node in nodes.tolist():
                depth = 0
                while node:
                    node, depth = int(tree.parents[node]), depth + 1
                assert depth < 3
            return super().expand(text, tree, nodes)

    policy = load(POLICIES, name).create()
    limits = Limits(nodes=6, depth=3, positions=256)
    alone(policy.grow(_Strict(3), np.array([1], np.int32), limits, ObservedCost(), np.ones((3, 1), np.float32)))


@pytest.mark.parametrize("name", names(POLICIES))
def test_one_seed_draws_one_tree(name: str) -> None:
    limits = Limits(nodes=8, depth=4, positions=256)
    trees = [
        alone(
            load(POLICIES, name)
            .create(np.random.default_rng(seed))
            .grow(_Talkative(5), np.array([1], np.int32), limits, ObservedCost(), np.full((4, 1), 0.5, np.float32))
        )
        for seed in (3, 3, 4, 5, 6)
    ]
    described = [(tree.tokens.tolist(), tree.parents.tolist()) for tree in trees]
    assert described[0] == described[1]
    assert described[2:] != described[:1] * 3
