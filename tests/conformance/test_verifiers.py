"""Run one suite over every verifier: valid outcomes, greedy text at temperature 0, and what its traits promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.plugins import load, names
from edgedec.runtime.capabilities import CertainVerifier
from edgedec.runtime.protocols import F32, Outcome, Sparse, TokenTree, Verifier
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.verifiers._traits import Traits
from tests.runtime.support.reference_draws import draw

VERIFIERS = names("edgedec.runtime.verifiers")
GREEDY_ONLY = {"greedy"}  # verifiers that must refuse to sample
TRAITS: dict[str, Traits] = {name: load("edgedec.runtime.verifiers", name).TRAITS for name in VERIFIERS}
SAMPLERS = [name for name in VERIFIERS if name not in GREEDY_ONLY]
LOSSLESS = [name for name in SAMPLERS if TRAITS[name].lossless != "lossy"]
CHAINS_ONLY = {name for name in VERIFIERS if TRAITS[name].policies == ("chain",)}
POLICIES = names("edgedec.runtime.trees")
VOCAB = 4
LENGTH = 3  # tokens of a trial
TRIALS = 20_000

# A text's next token depends on its last one. The target never writes 3 after 0, which the bad draft proposes.
TARGET = np.array(
    [[0.6, 0.3, 0.1, 0], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25], [0.05, 0, 0.9, 0.05]], np.float32
)
DRAFT = np.array([[0.1, 0.1, 0.2, 0.6], [0.4, 0.4, 0.1, 0.1], [0.7, 0.1, 0.1, 0.1], [0.3, 0.3, 0.3, 0.1]], np.float32)
GREEDY = np.eye(VOCAB, dtype=np.float32)[[1, 3, 0, 2]]

Grow = Callable[[int, np.random.Generator], TokenTree]


@pytest.fixture(params=VERIFIERS)
def verifier(request: pytest.FixtureRequest) -> Verifier:
    created: Verifier = load("edgedec.runtime.verifiers", request.param).create()
    return created


def guessed_chain(last: int, rng: np.random.Generator) -> TokenTree:
    """Propose two certain guesses, always wrong the first time after 0."""
    tokens = [last, 3 - last, 2]
    draft = {i: Sparse(ids=np.array([tokens[i + 1]], np.int32), probs=np.ones(1, np.float32)) for i in (0, 1)}
    return TokenTree(tokens=np.array(tokens, np.int32), parents=np.array([-1, 0, 1], np.int32), draft=draft)


def sampled_tree(last: int, rng: np.random.Generator) -> TokenTree:
    """Grow two children of the root and two of its first child, each drawn from the draft's distribution."""
    tokens, parents, draft = [last], [-1], {}
    for node in (0, 1):
        whole = DRAFT[tokens[node]]
        draft[node] = Sparse(ids=np.arange(VOCAB, dtype=np.int32), probs=whole)
        first = draw(whole, rng)
        remaining = whole.copy()
        remaining[first] = 0
        tokens += [first, draw(remaining, rng)]
        parents += [node, node]
    return TokenTree(tokens=np.array(tokens, np.int32), parents=np.array(parents, np.int32), draft=draft)


def sampled_chain(last: int, rng: np.random.Generator) -> TokenTree:
    """Draw a chain of three guesses."""
    tokens, draft = [last], {}
    for node in range(3):
        draft[node] = Sparse(ids=np.arange(VOCAB, dtype=np.int32), probs=DRAFT[tokens[-1]])
        tokens.append(draw(DRAFT[tokens[-1]], rng))
    return TokenTree(tokens=np.array(tokens, np.int32), parents=np.arange(-1, 3, dtype=np.int32), draft=draft)


def independent_tree(last: int, rng: np.random.Generator) -> TokenTree:
    """Grow a tree of the shape of ``sampled_tree`` whose siblings are drawn independently of each other."""
    tokens, parents, draft = [last], [-1], {}
    for node in (0, 1):
        draft[node] = Sparse(ids=np.arange(VOCAB, dtype=np.int32), probs=DRAFT[tokens[node]])
        tokens += [draw(DRAFT[tokens[node]], rng) for _ in range(2)]
        parents += [node, node]
    return TokenTree(
        tokens=np.array(tokens, np.int32), parents=np.array(parents, np.int32), draft=draft, with_replacement=True
    )


def drawn_for(name: str) -> Grow:
    """Return how to draw trees for a verifier."""
    if name in CHAINS_ONLY:
        return sampled_chain
    return independent_tree if TRAITS[name].children == "independent" else sampled_tree


def speculate(verifier: Verifier, grow: Grow, rng: np.random.Generator, random: PositionRandom) -> int:
    """Run one trial: ``LENGTH`` tokens after a 0, as one number in base ``VOCAB``."""
    text = [0]
    while len(text) <= LENGTH:
        tree = grow(text[-1], rng)
        says = [TARGET[token] for token in tree.tokens]
        outcome = verifier.accept(tree, says.__getitem__, random, len(text))
        text += [int(tree.tokens[node]) for node in outcome.path[1:]] + [outcome.next_token]
    a, b, c = text[1 : LENGTH + 1]
    return (a * VOCAB + b) * VOCAB + c


def surprise(verifier: Verifier, grow: Grow, trials: int) -> float:
    """Return by how many standard deviations the trials differ from the target's own text: chi-square, made normal.

    Source: Wilson and Hilferty, PNAS 17 (1931) 684.
    """
    rng = np.random.default_rng(20260714)
    texts = [speculate(verifier, grow, rng, PositionRandom(seed=trial)) for trial in range(trials)]
    counts = np.bincount(texts, minlength=VOCAB**LENGTH)
    expected = trials * np.einsum("a,ab,bc->abc", TARGET[0], TARGET, TARGET).reshape(-1).astype(np.float64)
    if counts[expected == 0].any():
        return math.inf
    cells = expected > 0
    freedom = int(cells.sum()) - 1
    chi2 = float((((counts - expected) ** 2)[cells] / expected[cells]).sum())
    return (math.cbrt(chi2 / freedom) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


@pytest.mark.nightly(sample=2)
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "grow"), [(name, grow) for name in LOSSLESS for grow in (guessed_chain, drawn_for(name))]
)
def test_the_text_has_the_targets_distribution(name: str, grow: Grow) -> None:
    assert surprise(load("edgedec.runtime.verifiers", name).create(), grow, TRIALS) < 4


@pytest.mark.parametrize("name", sorted(set(SAMPLERS) - set(LOSSLESS)))
def test_a_lossy_verifier_has_another_distribution(name: str) -> None:
    assert surprise(load("edgedec.runtime.verifiers", name).create(), guessed_chain, TRIALS // 20) > 8


@pytest.mark.parametrize("name", [name for name in SAMPLERS if TRAITS[name].lossless == "exact"])
def test_an_exact_verifier_writes_the_tokens_of_the_positions(name: str) -> None:
    verifier: Verifier = load("edgedec.runtime.verifiers", name).create()
    for seed in range(100):
        random, text = PositionRandom(seed=seed), [0]
        while len(text) < 5:
            text.append(random.token(TARGET[text[-1]], len(text)))
        tokens = (text[1] * VOCAB + text[2]) * VOCAB + text[3]
        assert speculate(verifier, sampled_tree, np.random.default_rng(seed), random) == tokens


@pytest.mark.parametrize("name", VERIFIERS)
def test_the_traits_of_a_verifier_name_policies_that_exist(name: str) -> None:
    traits = TRAITS[name]
    assert set(traits.policies) <= set(POLICIES)
    assert bool(traits.policies) == bool(traits.reason), "a refusal says why"


@pytest.mark.parametrize("name", sorted(GREEDY_ONLY))
def test_a_greedy_verifier_refuses_to_sample(name: str) -> None:
    verifier: Verifier = load("edgedec.runtime.verifiers", name).create()
    with pytest.raises(UsageError, match=r"temperature 0 only.*--temp 0"):
        speculate(verifier, guessed_chain, np.random.default_rng(0), PositionRandom(seed=0))


class _FirstChildAlways:
    """Plant a bug: accept the draft's first token without a check."""

    def accept(self, tree: TokenTree, target: Callable[[int], F32], random: PositionRandom, position: int) -> Outcome:
        return Outcome(path=np.array([0, 1], np.int32), next_token=random.token(target(1), position + 1))


class _RejectedMayComeBack:
    """Plant a subtler bug: accept a guess with its probability, but draw from all tokens after a rejection."""

    def accept(self, tree: TokenTree, target: Callable[[int], F32], random: PositionRandom, position: int) -> Outcome:
        if random.draws(position).random() < target(0)[tree.tokens[1]]:
            return Outcome(path=np.array([0, 1], np.int32), next_token=random.token(target(1), position + 1))
        return Outcome(path=np.array([0], np.int32), next_token=random.token(target(0), position))


@pytest.mark.thorough
@pytest.mark.parametrize("grow", [guessed_chain, sampled_tree])
@pytest.mark.parametrize("bug", [_FirstChildAlways, _RejectedMayComeBack])
def test_the_statistic_catches_a_planted_bug(bug: Callable[[], Verifier], grow: Grow) -> None:
    assert surprise(bug(), grow, TRIALS // 2) > 8


@st.composite
def trees(draw_value: st.DrawFn, name: str) -> TokenTree:
    size = draw_value(st.integers(1, 12))
    tokens, parents = [draw_value(st.integers(0, VOCAB - 1))], [-1]
    for node in range(1, size):
        parents.append(draw_value(st.integers(node - 1 if name in CHAINS_ONLY else 0, node - 1)))
        tokens.append(draw_value(st.integers(0, VOCAB - 1)))
    inner = sorted(set(parents[1:]))
    return TokenTree(
        tokens=np.array(tokens, np.int32),
        parents=np.array(parents, np.int32),
        draft={i: Sparse(ids=np.arange(VOCAB, dtype=np.int32), probs=DRAFT[tokens[i]]) for i in inner},
        with_replacement=True,
    )


@pytest.mark.thorough(sample=1)
@settings(max_examples=100)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("name", SAMPLERS)
def test_an_outcome_is_a_path_from_the_root_and_a_possible_token(name: str, data: st.DataObject, seed: int) -> None:
    tree = data.draw(trees(name))
    verifier: Verifier = load("edgedec.runtime.verifiers", name).create()
    outcome = verifier.accept(tree, lambda node: TARGET[tree.tokens[node]], PositionRandom(seed=seed), 9)
    assert outcome.path.dtype == np.int32
    assert outcome.path[0] == 0
    assert tree.parents[outcome.path[1:]].tolist() == outcome.path[:-1].tolist()
    tokens_written = [*tree.tokens[outcome.path].tolist(), outcome.next_token]
    assert all(TARGET[before, after] > 0 for before, after in pairwise(tokens_written))
    again = verifier.accept(tree, lambda node: TARGET[tree.tokens[node]], PositionRandom(seed=seed), 9)
    assert (again.path.tolist(), again.next_token) == (outcome.path.tolist(), outcome.next_token)


@pytest.mark.thorough(sample=1)
@settings(max_examples=100)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("name", VERIFIERS)
def test_at_temperature_zero_the_path_is_greedy_text(name: str, data: st.DataObject, seed: int) -> None:
    tree = data.draw(trees(name))
    verifier: Verifier = load("edgedec.runtime.verifiers", name).create()
    outcome = verifier.accept(tree, lambda node: GREEDY[tree.tokens[node]], PositionRandom(seed=seed), 9)
    tokens_written = [*tree.tokens[outcome.path].tolist(), outcome.next_token]
    assert all(after == int(GREEDY[before].argmax()) for before, after in pairwise(tokens_written))
    last = outcome.path[-1]
    assert outcome.next_token not in tree.tokens[tree.parents == last].tolist()
    if isinstance(verifier, CertainVerifier):
        followed = verifier.follow(tree, lambda node: int(GREEDY[tree.tokens[node]].argmax()))
        assert (followed.path.tolist(), followed.next_token) == (outcome.path.tolist(), outcome.next_token)
    match: Verifier = load("edgedec.runtime.verifiers", "match").create()
    plain = match.accept(tree, lambda node: GREEDY[tree.tokens[node]], PositionRandom(seed=0), 9)
    expected = [*tree.tokens[plain.path].tolist(), plain.next_token]
    siblings = list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
    if len(set(siblings)) == len(siblings):
        assert tokens_written == expected
    else:  # match follows the first of siblings with one token; another verifier may follow one with more below
        assert tokens_written[: len(expected)] == expected


def test_a_root_alone_is_plain_decoding(verifier: Verifier) -> None:
    root = TokenTree(tokens=np.array([1], np.int32), parents=np.array([-1], np.int32), draft={})
    outcome = verifier.accept(root, lambda node: GREEDY[1], PositionRandom(seed=0), 9)
    assert (outcome.path.tolist(), outcome.next_token) == ([0], 3)


def test_a_verifier_that_follows_tokens_takes_no_distribution() -> None:
    certain = {
        name for name in VERIFIERS if isinstance(load("edgedec.runtime.verifiers", name).create(), CertainVerifier)
    }
    assert certain == GREEDY_ONLY


def test_every_kind_of_verifier_occurs() -> None:
    assert {"greedy", "match", "rejection", "block", "traversal", "transport", "typical"} <= set(VERIFIERS)
