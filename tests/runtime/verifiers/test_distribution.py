"""Compare sampled speculation with plain sampling by one statistical check, and plant the bugs that it must detect.

A trial begins with one of four tokens and writes two more; the 4 * 6 * 6 sequences are counted and compared with their
exact probabilities by chi-square, converted to standard deviations (Wilson and Hilferty, PNAS 17 (1931) 684). Correct
ones must stay under ``SOUND``, which chance alone exceeds once in 30,000 runs (and seeds are fixed); planted bugs must
exceed ``CAUGHT``. Each lossless verifier runs with each of its policies, 10,000 trials of 2 draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.plugins import load, names
from edgedec.runtime.drafting import alone
from edgedec.runtime.planning.speculation import create_policy, verifier_traits
from edgedec.runtime.protocols import (
    F32,
    I32,
    CostModel,
    Draft,
    Drafting,
    Limits,
    Outcome,
    Sparse,
    TokenTree,
    TreePolicy,
    TreeSize,
    Verifier,
)
from edgedec.runtime.sampling.position_random import Draws, PositionRandom
from edgedec.runtime.trees._growth import Growth
from edgedec.runtime.verifiers import rejection
from edgedec.runtime.verifiers._drawn import residual
from tests.runtime.support.reference_draws import draw

POLICIES = names("edgedec.runtime.trees")
VOCAB, STARTS, TRIALS = 6, 4, 10_000
SOUND, CAUGHT = 4.0, 8.0
LIMITS = Limits(nodes=6, depth=3, positions=64)
ACCEPT = np.array([[0.6, 0.3], [0.5, 0.3], [0.4, 0.2]], np.float32)
F64 = NDArray[np.float64]


def no_sizes(policy: object, limits: Limits, accept: F32) -> tuple[TreeSize, ...]:
    """Return no sizes, as the method of policies that are only asked to grow."""
    return ()


_RNG = np.random.default_rng(20260714)
TARGET = _RNG.dirichlet(np.ones(VOCAB), VOCAB).astype(np.float32)
TARGET[1, [2, 5]] = 0  # tokens that the draft proposes and the target never writes
TARGET[3] = [0, 0, 0.5, 0, 0.5, 0]
TARGET /= TARGET.sum(axis=1, keepdims=True)


def _guess(token: int) -> Sparse:
    """Return a draft by the last token: good, arbitrary, good but cut to three tokens, certain, flat, equal to the
    target.
    """
    whole = TARGET[token].astype(np.float64)
    near_target = 0.7 * whole + 0.3 * _RNG.dirichlet(np.ones(VOCAB))
    ids, probs = {
        0: (np.arange(VOCAB), near_target),
        1: (np.arange(VOCAB), _RNG.dirichlet(np.ones(VOCAB))),
        2: (np.argsort(-near_target)[:3], np.sort(near_target)[::-1][:3]),  # sums to less than 1
        3: (np.array([1]), np.ones(1)),
        4: (np.arange(VOCAB), np.full(VOCAB, 1 / VOCAB)),
        5: (np.arange(VOCAB), whole),
    }[token]
    return Sparse(ids=ids.astype(np.int32), probs=probs.astype(np.float32))


GUESS = [_guess(token) for token in range(VOCAB)]


class _Draft:
    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        return [GUESS[tree.tokens[node]] for node in nodes]

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        return None


class _Cost:
    """Return growing costs, so that ``hardware`` chooses among sizes."""

    def seconds(self, nodes: int, past: int) -> float:
        return 1 + 0.02 * nodes * math.sqrt(nodes)


def surprise(verifier: Verifier, policy: TreePolicy, trials: int = TRIALS) -> float:
    """Return by how many standard deviations the text differs from the target's."""
    counts = np.zeros((STARTS, VOCAB, VOCAB))
    draft, cost = _Draft(), _Cost()
    for trial in range(trials):
        text, random = [trial % STARTS], PositionRandom(seed=trial)
        while len(text) < 3:
            tree = alone(policy.grow(draft, np.array(text, np.int32), LIMITS, cost, ACCEPT))
            tokens = tree.tokens.tolist()
            says = [TARGET[token] for token in tokens]
            outcome = verifier.accept(tree, says.__getitem__, random, len(text))
            text += [*(tokens[node] for node in outcome.path.tolist()[1:]), outcome.next_token]
        counts[text[0], text[1], text[2]] += 1
    target = TARGET.astype(np.float64)
    target /= target.sum(axis=1, keepdims=True)
    expected = trials / STARTS * target[:STARTS, :, None] * target[None]
    if counts[expected == 0].any():
        return math.inf
    cells = expected > 0
    freedom = int(cells.sum()) - STARTS
    chi2 = float((((counts - expected) ** 2)[cells] / expected[cells]).sum())
    return (math.cbrt(chi2 / freedom) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


def made(policy: str, rng: np.random.Generator | None, *, independent: bool = False) -> TreePolicy:
    if policy != "hardware":
        return create_policy(policy, rng, independent=independent)
    tree_policy: TreePolicy = load("edgedec.runtime.trees", policy).create(rng, clock=lambda: 0.0)
    return tree_policy


def verifier(name: str) -> Verifier:
    created: Verifier = load("edgedec.runtime.verifiers", name).create()
    return created


NIGHTLY = pytest.mark.nightly
WAYS = [  # origin of the children, and whether the case adds to the others
    *(pytest.param("rejection", name, True, id=f"rejection-{name}-drawn") for name in POLICIES),
    *(pytest.param("match", name, False, id=f"match-{name}-chosen") for name in POLICIES),
    *(pytest.param("rejection", name, False, id=f"rejection-{name}-chosen", marks=NIGHTLY) for name in POLICIES),
    *(pytest.param("match", name, True, id=f"match-{name}-drawn", marks=NIGHTLY) for name in POLICIES),
    *(
        pytest.param(name, policy, True, id=f"{name}-{policy}-drawn")
        for name in names("edgedec.runtime.verifiers")
        if name not in ("match", "rejection") and verifier_traits(name).lossless == "distribution"
        for policy in verifier_traits(name).policies or POLICIES
    ),
]


@pytest.mark.nightly(sample=6)
@pytest.mark.thorough
@pytest.mark.parametrize(
    "trials", [TRIALS // 20, pytest.param(TRIALS, marks=[pytest.mark.thorough, pytest.mark.nightly(sample=8)])]
)
@pytest.mark.parametrize(("name", "policy", "drawn"), WAYS)
def test_speculation_cannot_be_told_from_plain_sampling(name: str, policy: str, drawn: bool, trials: int) -> None:
    rng, independent = np.random.default_rng(1), verifier_traits(name).children == "independent"
    grown = made(policy, rng if drawn else None, independent=independent)
    assert surprise(verifier(name), grown, trials) < SOUND


class _WithReplacement:
    """Grow two levels of three and two children, drawn independently of each other."""

    sizes = no_sizes

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
        yield from ()
        tokens, parents, guesses = [int(text[-1])], [-1], {}
        for node, count in ((0, 3), (1, 2)):
            guess = guesses[node] = GUESS[tokens[node]]
            for _ in range(count):
                tokens.append(int(guess.ids[draw(guess.probs, self.rng)]))
                parents.append(node)
        return TokenTree(
            tokens=np.array(tokens, np.int32),
            parents=np.array(parents, np.int32),
            draft=guesses,
            with_replacement=True,
        )


@pytest.mark.thorough
def test_children_drawn_with_replacement_keep_the_distribution() -> None:
    rng = np.random.default_rng(2)
    assert surprise(verifier("rejection"), _WithReplacement(rng)) < SOUND


@pytest.mark.thorough
def test_with_one_seed_chosen_children_do_not_change_the_text() -> None:
    """Check that lossless verifiers use one number per token if children are chosen, with a tree or without."""

    def written(name: str, policy: str) -> list[int]:
        random, text = PositionRandom(seed=7), [0]
        while len(text) < 500:
            tree = alone(made(policy, None).grow(_Draft(), np.array(text, np.int32), LIMITS, _Cost(), ACCEPT))
            says = [TARGET[token] for token in tree.tokens]
            outcome = verifier(name).accept(tree, says.__getitem__, random, len(text))
            text += [*tree.tokens[outcome.path[1:]].tolist(), outcome.next_token]
        return text[:500]

    plain, random = [0], PositionRandom(seed=7)
    while len(plain) < 500:
        plain.append(random.token(TARGET[plain[-1]], len(plain)))
    for name in ("match", "rejection", "block", "traversal", "transport"):
        for policy in verifier_traits(name).policies or POLICIES:
            assert written(name, policy) == plain, (name, policy)


# Planted bugs. The check above must detect each.


class _Rewritten:
    """Tamper with the trees of a policy."""

    sizes = no_sizes

    def __init__(self, policy: TreePolicy, change: Callable[[TokenTree], TokenTree]) -> None:
        self.policy, self.change = policy, change

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
        return self.change((yield from self.policy.grow(draft, text, limits, cost, accept)))


def _declared_as_drawn(tree: TokenTree) -> TokenTree:
    draft = {node: GUESS[tree.tokens[node]] for node in tree.draft}
    return TokenTree(tokens=tree.tokens, parents=tree.parents, draft=draft)


@pytest.mark.thorough
@pytest.mark.parametrize("policy", [pytest.param(name, marks=[] if name == "static" else NIGHTLY) for name in POLICIES])
def test_chosen_children_declared_as_drawn_are_detected(policy: str) -> None:
    assert surprise(verifier("rejection"), _Rewritten(made(policy, None), _declared_as_drawn), TRIALS // 4) > CAUGHT


@pytest.mark.nightly(sample=1)
@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_an_unnormalized_residual_is_detected(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unnormalized(target: F64, ids: I32, proposal: F64) -> F64:
        residual_left = target.copy()
        residual_left[ids] = np.maximum(residual_left[ids] - proposal, 0)
        return residual_left if residual_left.any() else target

    monkeypatch.setattr(rejection, "residual", unnormalized)
    rng = np.random.default_rng(5)
    assert surprise(verifier("rejection"), made(policy, rng), 3 * TRIALS // 2) > CAUGHT


@pytest.mark.thorough
def test_draws_seeded_by_the_text_are_detected() -> None:
    """Check this because children that are a function of the text are chosen, however random they look."""

    class _Hashed:
        sizes = no_sizes

        def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
            return made("chain", np.random.default_rng([9, *text.tolist()])).grow(draft, text, limits, cost, accept)

    assert surprise(verifier("rejection"), _Hashed(), TRIALS // 4) > CAUGHT


@pytest.mark.thorough
def test_the_best_of_many_draws_is_detected() -> None:
    """Check this because the token decides whether it stays if the drawn child with the larger draft probability is
    kept.
    """

    class _Best:
        sizes = no_sizes
        rng = np.random.default_rng(11)

        def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
            growth = Growth(draft, text, 3, self.rng)
            yield from growth.expand([0])
            first, second = growth.add(0), growth.add(0)
            tree = growth.tree()
            keep = 2 if second is not None and first is not None and second > first else 1
            tokens = tree.tokens[[0, keep]] if first is not None else tree.tokens
            return TokenTree(tokens=tokens, parents=tree.parents[: len(tokens)], draft=tree.draft)

    assert surprise(verifier("rejection"), _Best(), TRIALS // 4) > CAUGHT


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("policy", POLICIES)
def test_typical_acceptance_is_lossy_and_says_so(policy: str) -> None:
    assert verifier_traits("typical").lossless == "lossy"
    assert surprise(verifier("typical"), made(policy, None), TRIALS // 4) > CAUGHT


# Residual, without statistics.


@st.composite
def distributions(draw_value: st.DrawFn, size: int) -> F64:
    weights = draw_value(st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any))
    return np.array(weights, np.float64) / sum(weights)


@pytest.mark.thorough
@given(target=distributions(5), proposal=distributions(5))
def test_acceptance_and_residual_add_up_to_the_target(target: F64, proposal: F64) -> None:
    """Check min(t, d) + (1 - sum(min(t, d))) * residual = t, which is one round of the induction."""
    accepted = np.minimum(target, proposal)
    remainder = residual(target, np.arange(5, dtype=np.int32), proposal)
    assert remainder.sum() == pytest.approx(1)
    assert np.all(remainder[target == 0] == 0)
    assert accepted + (1 - accepted.sum()) * remainder == pytest.approx(target, abs=1e-12)


def test_an_empty_residual_is_the_target() -> None:
    target = np.array([0.25, 0.5, 0.25])
    for proposal in (target, np.array([0.3, 0.6, 0.3])):
        assert residual(target, np.arange(3, dtype=np.int32), proposal).tolist() == target.tolist()


def _tree(tokens: Sequence[int], probs: dict[int, float], **more: bool) -> TokenTree:
    guess = Sparse(ids=np.array(list(probs), np.int32), probs=np.array(list(probs.values()), np.float32))
    parents = np.array([-1, *[0] * (len(tokens) - 1)], np.int32)
    return TokenTree(tokens=np.array(tokens, np.int32), parents=parents, draft={0: guess}, **more)


class _AlmostOne(Draws):
    def random(self) -> float:
        return 1 - 2**-53


class _Never(PositionRandom):
    """Return draws that reject whatever can be rejected."""

    def draws(self, position: int) -> Draws:
        return _AlmostOne(0)


def test_a_rejection_by_rounding_leaves_a_possible_token() -> None:
    """Use the target as the draft: in exact arithmetic nothing is rejected, and the residual sums to nothing."""
    target = np.array([0.1, 0.2, 0.7, 0], np.float32)
    proposal = {0: 0.1, 1: 0.2, 2: 0.7 + 1e-6}
    outcome = verifier("rejection").accept(_tree([0, 2, 1, 0], proposal), lambda node: target, _Never(seed=0), 3)
    probability = [0, 2, 1, 0][outcome.path[1]] if len(outcome.path) > 1 else outcome.next_token
    assert target[probability] > 0


@pytest.mark.parametrize(
    ("tokens", "probs", "message"),
    [
        ([0, 4], {1: 0.5, 2: 0.5}, r"node 1 \(token 4\).*gives it probability 0"),
        ([0, 1], {1: 0.0, 2: 0.5}, r"node 1 \(token 1\).*gives it probability 0"),
        ([0, 1, 1], {1: 0.5, 2: 0.5}, r"node 2 \(token 1\).*gives it probability 0"),
        ([0, 1, 2, 3], {1: 0.5, 2: 0.5}, r"node 3 \(token 3\).*has no token left"),
        ([0, 1], {1: 0.0, 2: 0.0}, r"node 1 \(token 1\).*has no token left"),
    ],
)
def test_children_that_cannot_have_been_drawn_are_refused(
    tokens: list[int], probs: dict[int, float], message: str
) -> None:
    target = np.array([0.5, 0, 0, 0, 0.5], np.float32)
    with pytest.raises(EdgedecError, match=message):
        verifier("rejection").accept(_tree(tokens, probs), lambda node: target, PositionRandom(seed=0), 3)


def test_a_node_without_a_draft_is_verified_by_matching() -> None:
    target = np.array([0, 0, 1, 0], np.float32)
    tree = TokenTree(tokens=np.array([0, 1, 2], np.int32), parents=np.array([-1, 0, 0], np.int32), draft={})
    outcome = verifier("rejection").accept(tree, lambda node: target, PositionRandom(seed=0), 3)
    assert (outcome.path.tolist(), outcome.next_token) == ([0, 2], 2)
