from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from edgedec.errors import EdgedecError
from edgedec.runtime.drafting import alone
from edgedec.runtime.protocols import Limits, Sparse
from edgedec.runtime.trees._growth import ChosenChildren, DrawnChildren, Growth
from tests.runtime.trees.support.fake_draft import TEXT, FakeDraft, sparse

LIMITS = Limits(nodes=8, depth=4, positions=64)


def test_chosen_children_are_the_likeliest_in_order_of_their_ids() -> None:
    children = ChosenChildren(sparse({4: 0.1, 2: 0.4, 9: 0.1, 7: 0.3, 1: 0.0}), 8)
    assert children.expected == pytest.approx(0.4)
    assert children.rest == pytest.approx(0.9)
    assert [children.take()[0] for _ in range(4)] == [2, 7, 4, 9]
    assert children.expected == children.reach == 0  # a token without probability is no guess


@pytest.mark.parametrize("count", [1, 2, 7])
def test_children_chosen_from_a_whole_vocabulary_equal_those_of_a_sort(count: int) -> None:
    probs = np.random.default_rng(0).integers(0, 9, 400).astype(np.float32)  # many are equal
    children = ChosenChildren(Sparse(ids=np.arange(400, dtype=np.int32), probs=probs), count)
    dealt = [children.take()[0] for _ in range(count)]
    assert dealt == np.argsort(-probs, kind="stable")[:count].tolist()


@pytest.mark.thorough
def test_drawn_children_are_a_sample_without_replacement() -> None:
    """Compare pairs of draws with their exact probabilities; six standard deviations, fixed seed."""
    probs = {3: 0.4, 5: 0.2, 8: 0.1, 2: 0.0}  # sums to 0.7: draws normalize it
    rng, draws, pairs = np.random.default_rng(5), 40_000, Counter[tuple[int, int]]()
    for _ in range(draws):
        children = DrawnChildren(sparse(probs), rng)
        pairs[children.take()[0], children.take()[0]] += 1
    assert sum(pairs.values()) == draws
    for first in (3, 5, 8):
        for second in {3, 5, 8} - {first}:
            expected = probs[first] / 0.7 * probs[second] / (0.7 - probs[first])
            assert abs(pairs[first, second] / draws - expected) < 6 * np.sqrt(expected / draws)


def test_a_drawn_node_runs_out_of_children() -> None:
    children = DrawnChildren(sparse({3: 0.5, 5: 0.25, 2: 0.0}), np.random.default_rng(0))
    assert children.reach == pytest.approx(0.75)
    assert children.expected == pytest.approx((0.25 + 0.0625) / 0.75)
    first, prob = children.take()
    assert prob == {3: 0.5, 5: 0.25}[first]
    assert children.reach == pytest.approx(0.75 - prob)
    assert children.take()[0] == 8 - first
    assert children.expected == children.reach == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.5])
def test_draws_from_an_invalid_distribution_are_refused(value: float) -> None:
    with pytest.raises(EdgedecError, match=r"2 probabilities are not a distribution.*--spec-type"):
        DrawnChildren(sparse({1: 0.9, 2: value}), np.random.default_rng(0))


@pytest.mark.parametrize("rng", [None, np.random.default_rng(0)])
def test_guesses_without_probability_are_no_children(rng: np.random.Generator | None) -> None:
    for guess in ({}, {4: 0.0}, {4: 0.0, 5: 0.0}):
        growth = Growth(FakeDraft(lambda path, guess=guess: guess, LIMITS), TEXT, 8, rng)  # type: ignore[misc]
        alone(growth.expand([0]))
        assert growth.add(0) is None
        assert len(growth.tree().tokens) == 1


def test_a_tree_says_whether_its_children_were_drawn() -> None:
    guess = {4: 0.5, 2: 0.25, 9: 0.25}
    chosen_growth = Growth(FakeDraft(lambda path: guess, LIMITS), TEXT, 8, None)
    drawn_growth = Growth(FakeDraft(lambda path: guess, LIMITS), TEXT, 8, np.random.default_rng(0))
    certain = Growth(FakeDraft(lambda path: {6: 0.8}, LIMITS), TEXT, 8, np.random.default_rng(0))
    for growth in (chosen_growth, drawn_growth, certain):
        alone(growth.expand([0]))
        while growth.add(0) is not None:
            pass
    assert (chosen_growth.tree().draft[0].ids.tolist(), chosen_growth.tree().draft[0].probs.tolist()) == (
        [4, 2, 9],
        [1, 1, 1],
    )
    assert (drawn_growth.tree().draft[0].ids.tolist(), drawn_growth.tree().draft[0].probs.tolist()) == (
        [4, 2, 9],
        [0.5, 0.25, 0.25],
    )
    assert (certain.tree().draft[0].ids.tolist(), certain.tree().draft[0].probs.tolist()) == ([6], [1])
    assert not drawn_growth.tree().with_replacement


def test_a_cut_tree_equals_one_grown_to_that_size() -> None:
    growth = Growth(FakeDraft(lambda path: {4: 0.5, 2: 0.5}, LIMITS), TEXT, 8, None)
    alone(growth.expand([0]))
    growth.add(0)
    alone(growth.expand([1]))
    for node in (1, 0, 1):
        growth.add(node)
    growth.cut(4)
    tree = growth.tree()
    assert (tree.tokens.tolist(), tree.parents.tolist()) == ([0, 4, 4, 2], [-1, 0, 1, 0])
    assert {node: guess.ids.tolist() for node, guess in tree.draft.items()} == {0: [4, 2], 1: [4]}


def test_a_node_may_have_hundreds_of_children() -> None:
    limits = Limits(nodes=400, depth=1, positions=64)
    growth = Growth(FakeDraft(lambda path: dict.fromkeys(range(500), 0.002), limits), TEXT, 400, None)
    alone(growth.expand([0]))
    while len(growth) < 400:
        assert growth.add(0) is not None
    guess = growth.tree().draft[0]
    assert guess.ids.tolist() == list(range(399))
    assert guess.probs.tolist() == [1.0] * 399
