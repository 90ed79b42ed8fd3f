from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.runtime.drafting import alone
from edgedec.runtime.protocols import Limits
from edgedec.runtime.trees.dynamic import create
from tests.runtime.trees.support.fake_draft import TEXT, FakeCost, FakeDraft, best_paths, path_of, paths_of, table

COST = FakeCost([1.0] * 64)


@pytest.mark.thorough
@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 12), depth=st.integers(0, 4), vocab=st.integers(1, 4))
def test_the_tree_has_the_largest_products(seed: int, nodes: int, depth: int, vocab: int) -> None:
    limits = Limits(nodes=nodes, depth=depth, positions=64)
    guess = table(seed, vocab)
    draft = FakeDraft(guess, limits)
    tree = alone(create().grow(draft, TEXT, limits, COST, np.ones((depth, 1), np.float32)))
    expected = best_paths(guess, nodes, depth, vocab, [1.0] * depth)
    assert paths_of(tree) == {path for _, path in expected}
    inner = set(tree.parents[1:].tolist())
    expanded = [node for call in draft.asked for node in call]
    assert len(expanded) == len(set(expanded)), "a distribution was asked for twice"
    assert inner <= set(expanded)


def test_nodes_that_are_nearly_as_good_are_expanded_in_one_call() -> None:
    limits = Limits(nodes=64, depth=3, positions=64)
    draft = FakeDraft(lambda path: {1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25}, limits)
    tree = alone(create().grow(draft, TEXT, limits, COST, np.ones((3, 1), np.float32)))
    assert len(tree.tokens) == 64
    assert draft.asked == [[0], [1, 2, 3, 4], list(range(5, 21))]


def test_certain_guesses_make_a_chain() -> None:
    limits = Limits(nodes=9, depth=5, positions=64)
    tree = alone(
        create().grow(FakeDraft(table(1, 4, certain=True), limits), TEXT, limits, COST, np.ones((5, 1), np.float32))
    )
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3, 4]


def test_drawn_places_are_filled_in_the_order_of_dyspec() -> None:
    """Replay the heap of the paper: the best place first, where a place's value never counts its own token."""
    limits = Limits(nodes=12, depth=4, positions=64)
    for seed in range(30):
        guess = table(seed, 4)
        draft = FakeDraft(guess, limits)
        tree = alone(create(np.random.default_rng(seed)).grow(draft, TEXT, limits, COST, np.ones((4, 1), np.float32)))
        value, remaining = {0: 1.0}, {0: 1.0}  # value of a node; what the siblings left for the place of its next child
        for node in range(1, len(tree.tokens)):
            places = {
                at: value[at] * remaining[at] for at in value if remaining[at] > 1e-6 and len(path_of(tree, at)) <= 4
            }
            parent, token = int(tree.parents[node]), int(tree.tokens[node])
            assert places[parent] == pytest.approx(max(places.values()), abs=1e-6)
            prob = guess(path_of(tree, parent))[token]
            value[node], remaining[node] = value[parent] * prob, 1.0
            remaining[parent] -= prob
