"""Test `chain`, `static` and `delayed`, whose shapes do not depend on the draft's probabilities."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.protocols import Limits
from edgedec.runtime.trees import chain, delayed, static
from tests.runtime.trees.support.fake_draft import TEXT, FakeCost, FakeDraft, paths_of, table

COST = FakeCost([1.0] * 64)


def test_a_chain_takes_the_likeliest_to_the_depth_limit_or_the_last_guess() -> None:
    guess = {(0,): {1: 0.2, 5: 0.8}, (0, 5): {2: 0.1}, (0, 5, 2): {}}
    limits = Limits(nodes=8, depth=7, positions=64)
    draft = FakeDraft(lambda path: guess[path], limits)
    tree = chain.create().grow(draft, TEXT, limits, COST, np.ones(7, np.float32))
    assert (tree.tokens.tolist(), tree.parents.tolist()) == ([0, 5, 2], [-1, 0, 1])
    assert draft.asked == [[0], [1], [2]]
    limits = Limits(nodes=8, depth=3, positions=64)
    tree = chain.create().grow(FakeDraft(table(0, 4), limits), TEXT, limits, COST, np.ones(3, np.float32))
    assert tree.parents.tolist() == [-1, 0, 1, 2]


def all_static_nodes(depth: int, widest: int) -> list[tuple[float, tuple[int, ...]]]:
    """Return every node as ranks along its path, the best first."""
    values = [
        (float(np.prod([static.SHARE * (1 - static.SHARE) ** rank for rank in ranks])), ranks)
        for length in range(1, depth + 1)
        for ranks in product(range(widest), repeat=length)
    ]
    return sorted(values, reverse=True)


@pytest.mark.parametrize("nodes", range(1, 17))
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_the_static_shape_has_the_largest_products(nodes: int, depth: int) -> None:
    levels = static.shape(nodes, depth)
    assert len(levels) <= depth
    values, above, total = [1.0], [1.0], 1
    for level in levels:
        children: dict[int, int] = {}
        node_path = []
        for parent in level:
            rank = children[parent] = children.get(parent, -1) + 1
            node_path.append(above[parent] * static.SHARE * (1 - static.SHARE) ** rank)
        values, above, total = values + node_path, node_path, total + len(level)
    best = [1.0] + [value for value, _ in all_static_nodes(depth, 16 if depth == 1 else 6)[: nodes - 1]]
    assert total == (nodes if depth else 1)
    assert sorted(values, reverse=True) == pytest.approx(best)


def test_the_documented_shapes_are_built() -> None:
    assert static.shape(8, 8) == ((0, 0), (0, 0, 1), (0,), (0,))
    assert [len(level) for level in static.shape(16, 8)] == [3, 6, 4, 1, 1]


def test_static_calls_the_draft_once_per_level_and_leaves_missing_guesses_empty() -> None:
    limits = Limits(nodes=8, depth=8, positions=64)
    draft = FakeDraft(table(3, 5), limits)
    tree = static.create().grow(draft, TEXT, limits, COST, np.zeros(8, np.float32))
    assert (len(tree.tokens), len(draft.asked)) == (8, 4)
    draft = FakeDraft(table(3, 5, certain=True), limits)
    tree = static.create().grow(draft, TEXT, limits, COST, np.zeros(8, np.float32))
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3]  # the draft has no token for the branches


accepts = st.lists(st.floats(0, 1), min_size=6, max_size=6)


def some_token_right(shape: delayed.Plan, accept: list[float]) -> float:
    """Compute ``expected`` over every way in which guesses can be right: along the stem, then along one branch."""
    stem, branches = shape
    total = 0.0
    for right in range(stem):  # the stem breaks after ``right`` tokens
        total += right * math.prod(accept[:right]) * (1 - accept[right])
    come = math.prod(accept[:stem])
    missed = come
    for rank, length in enumerate(branches):
        reach = come * accept[stem] * (1 - accept[stem]) ** rank
        missed -= reach
        for right in range(1, length + 1):
            goes_on = accept[stem + right] if right < length else 0.0
            total += (stem + right) * reach * (1 - goes_on)
            reach *= goes_on
    return total + stem * missed


@given(accept=accepts, nodes=st.integers(1, 16))
def test_delayed_plans_stay_within_their_limits_and_reach_their_expectation(accept: list[float], nodes: int) -> None:
    shape = delayed.plan(nodes, 6, tuple(accept))
    stem, branches = shape
    assert 1 + stem + sum(branches) <= nodes
    assert stem + max(branches, default=0) <= 6
    assert len(branches) <= delayed.BRANCHES
    assert delayed.expected(shape, accept) == pytest.approx(some_token_right(shape, accept), abs=1e-9)
    for length in range(min(6, nodes - 1) + 1):
        assert delayed.expected(delayed._shape(length, nodes, 6), accept) <= delayed.expected(shape, accept) + 1e-12


@pytest.mark.parametrize(
    ("accept", "parents"),
    [
        ([1.0] * 6, [-1, 0, 1, 2, 3, 4, 5]),  # all guesses are right: a chain
        ([0.3] * 6, [-1, 0, 0, 0, 1, 2, 3, 4]),  # the first one fails: branches from the root
        ([1.0, 1.0, 0.3, 0.3, 0.3, 0.3], [-1, 0, 1, 2, 2, 2, 3, 4]),  # it fails after two
    ],
)
def test_branches_begin_where_guesses_fail(accept: list[float], parents: list[int]) -> None:
    limits = Limits(nodes=8, depth=6, positions=64)
    tree = delayed.create().grow(FakeDraft(table(4, 6), limits), TEXT, limits, COST, np.array(accept, np.float32))
    assert tree.parents.tolist() == parents
    assert len(paths_of(tree)) == len(parents)


def test_delayed_calls_the_draft_once_per_level_and_accepts_few_guesses() -> None:
    limits = Limits(nodes=8, depth=6, positions=64)
    draft = FakeDraft(table(4, 6), limits)
    delayed.create().grow(draft, TEXT, limits, COST, np.full(6, 0.3, np.float32))
    assert draft.asked == [[0], [1, 2, 3], [4]]
    draft = FakeDraft(table(4, 6, certain=True), limits)
    tree = delayed.create().grow(draft, TEXT, limits, COST, np.full(6, 0.3, np.float32))
    assert tree.parents.tolist() == [-1, 0, 1, 2]
    draft = FakeDraft(lambda path: {2: 0.5} if len(path) < 2 else {}, limits)
    tree = delayed.create().grow(draft, TEXT, limits, COST, np.ones(6, np.float32))
    assert tree.parents.tolist() == [-1, 0]
