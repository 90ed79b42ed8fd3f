"""Test the selector of ``delayed``: what it estimates, and how trees follow it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.drafting import alone
from edgedec.runtime.protocols import Limits, Sparse
from edgedec.runtime.trees import delayed
from edgedec.runtime.trees._growth import ChosenChildren, DrawnChildren
from edgedec.runtime.trees._selector import CHOSEN, DRAWN, Selector, logit
from tests.runtime.trees.support.fake_draft import TEXT, FakeCost, FakeDraft

COST = FakeCost([1.0] * 64)


def guess(*probs: float) -> Sparse:
    return Sparse(ids=np.arange(len(probs), dtype=np.int32), probs=np.array(probs, np.float32))


def logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_the_chances_are_those_of_the_formula() -> None:
    selector, measured = Selector(), (0.6, 0.3, 0.2)
    chances = selector.chances(ChosenChildren(guess(0.2, 0.5, 0.3), 3), measured)
    first, other = CHOSEN
    assert chances == pytest.approx(
        [
            logistic(logit(0.6) + first.bias + first.draft * (logit(0.5) - first.mean)),
            logistic(logit(0.3) + other.bias + other.draft * (logit(0.3 / 0.5) - other.mean)),
            # all three candidates are certain together; the mean has followed the second
            logistic(logit(0.2) + other.bias + other.draft * (6 - other.mean - (logit(0.6) - other.mean) / 64)),
        ],
        abs=1e-5,
    )


def test_of_drawn_children_only_the_first_is_estimated_by_its_expected_probability() -> None:
    children = DrawnChildren(guess(0.2, 0.5, 0.3), np.random.default_rng(0))
    (weights,) = DRAWN
    first, *others = Selector().chances(children, (0.6, 0.3, 0.2))
    expected = 0.04 + 0.25 + 0.09
    assert first == pytest.approx(
        logistic(logit(0.6) + weights.bias + weights.draft * (logit(expected) - weights.mean))
    )
    assert others == [0.3, 0.2]


def test_a_guess_without_probability_has_the_measured_chance() -> None:
    selector = Selector()
    for _ in range(3):
        assert selector.chances(ChosenChildren(guess(1.0), 3), (0.6, 0.3)) == (0.6, 0.3)


@pytest.mark.parametrize("prob", [0.3, 0.6, 0.99])
def test_a_draft_that_is_always_equally_certain_has_nearly_the_measured_chance(prob: float) -> None:
    """Check that the mean follows: the certainty of a draft does not count, but only its changes do."""
    selector = Selector()
    for _ in range(1000):
        chances = selector.chances(ChosenChildren(guess(prob, 1 - prob), 1), (0.6,))
    assert chances[0] == pytest.approx(logistic(logit(0.6) + CHOSEN[0].bias), abs=1e-3)


@given(
    probs=st.lists(st.floats(0, 1, width=32), min_size=2, max_size=6).filter(any),
    measured=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    drawn=st.booleans(),
)
def test_chances_are_probabilities(probs: list[float], measured: list[float], drawn: bool) -> None:
    whole = guess(*(np.array(probs) / sum(probs)).tolist())
    children = DrawnChildren(whole, np.random.default_rng(0)) if drawn else ChosenChildren(whole, 8)
    chances = Selector().chances(children, measured)
    assert len(chances) == len(measured)
    assert all(0 <= chance <= 1 for chance in chances)


@pytest.mark.parametrize("drawn", [False, True])
def test_a_tree_goes_on_where_the_draft_is_certain_and_branches_where_it_is_not(drawn: bool) -> None:
    """Use the same measured acceptance, and a draft that hesitates after two tokens or at once."""
    limits = Limits(nodes=8, depth=7, positions=64)
    accept = np.tile(np.array([0.6, 0.3, 0.2], np.float32), (7, 1))
    sure, unsure = {0: 0.99, 1: 0.006, 2: 0.004}, {0: 0.3, 1: 0.28, 2: 0.22, 3: 0.2}

    def told(at: int, path: tuple[int, ...]) -> Mapping[int, float]:
        return unsure if len(path) == 1 + at else sure

    stems = []
    for hesitates in (0, 2):
        draft = FakeDraft(partial(told, hesitates), limits)
        policy = delayed.create(np.random.default_rng(3) if drawn else None)
        tree = alone(policy.grow(draft, TEXT, limits, COST, accept))
        parents = tree.parents.tolist()
        assert len(parents) == 8
        stems.append(next(node for node in range(8) if parents.count(node) > 1))
    assert stems == [0, 2]


def test_without_the_selector_the_draft_does_not_matter() -> None:
    limits = Limits(nodes=8, depth=7, positions=64)
    accept = np.tile(np.array([0.6, 0.3, 0.2], np.float32), (7, 1))

    def always(guesses: Mapping[int, float], path: tuple[int, ...]) -> Mapping[int, float]:
        return guesses

    shapes = set()
    for prob in (0.99, 0.3):
        guesses = {0: prob, **dict.fromkeys(range(1, 5), (1 - prob) / 4)}
        draft = FakeDraft(partial(always, guesses), limits)
        shapes.add(tuple(alone(delayed.create(selects=False).grow(draft, TEXT, limits, COST, accept)).parents.tolist()))
    assert len(shapes) == 1
