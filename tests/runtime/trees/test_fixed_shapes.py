"""Test `chain`, `static`, and `delayed` without its selector, whose shapes do not depend on the draft's probabilities."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement, product
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec import demo
from edgedec.runtime.drafting import alone
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import Limits
from edgedec.runtime.rounds.adaptive import Adaptive
from edgedec.runtime.session.session import Session
from edgedec.runtime.trees import chain, delayed, static
from tests.runtime.trees.support.fake_draft import TEXT, FakeCost, FakeDraft, paths_of, table

COST = FakeCost([1.0] * 64)


def test_a_chain_takes_the_likeliest_to_the_depth_limit_or_the_last_guess() -> None:
    guess = {(0,): {1: 0.2, 5: 0.8}, (0, 5): {2: 0.1}, (0, 5, 2): {}}
    limits = Limits(nodes=8, depth=7, positions=64)
    draft = FakeDraft(lambda path: guess[path], limits)
    tree = alone(chain.create().grow(draft, TEXT, limits, COST, np.ones((7, 1), np.float32)))
    assert (tree.tokens.tolist(), tree.parents.tolist()) == ([0, 5, 2], [-1, 0, 1])
    assert draft.asked == [[0], [1], [2]]
    limits = Limits(nodes=8, depth=3, positions=64)
    tree = alone(chain.create().grow(FakeDraft(table(0, 4), limits), TEXT, limits, COST, np.ones((3, 1), np.float32)))
    assert tree.parents.tolist() == [-1, 0, 1, 2]


Rates = list[list[float]]


def reach(path: tuple[int, ...], rates: Rates) -> float:
    """Return the probability that the text goes along the siblings of these ranks."""
    value = 1.0
    for depth, rank in enumerate(path):
        by_rank = [*rates[depth], *[rates[depth][-1]] * rank]
        value *= by_rank[rank] * math.prod(1 - rate for rate in by_rank[:rank])
    return value


def ranks_of(levels: static.Shape) -> set[tuple[int, ...]]:
    """Return every node of a shape as the ranks along its path."""
    above: list[tuple[int, ...]] = [()]
    result = set[tuple[int, ...]]()
    for level in levels:
        here = [(*above[parent], level[:at].count(parent)) for at, parent in enumerate(level)]
        result, above = result | set(here), here
    return result


@settings(max_examples=30)
@given(
    rates=st.lists(st.lists(st.floats(0.01, 0.99), min_size=3, max_size=3), min_size=4, max_size=4),
    nodes=st.integers(1, 14),
    depth=st.integers(0, 4),
)
def test_the_static_shape_has_the_largest_probabilities(rates: Rates, nodes: int, depth: int) -> None:
    rates = [sorted(row, reverse=True) for row in rates]  # otherwise a later sibling may be worth more than the first
    levels = static.shape(nodes, depth, rates)
    paths = ranks_of(levels)
    assert len(levels) <= depth
    assert len(paths) == sum(map(len, levels)) == (nodes - 1 if depth else 0)
    every = [path for length in range(1, depth + 1) for path in product(range(14 if depth == 1 else 7), repeat=length)]
    best = sorted((reach(path, rates) for path in every), reverse=True)[: nodes - 1]
    # The largest values are compared as far as the enumeration, which ends at the seventh sibling, must hold them.
    if depth == 1 or all(max(path) < 6 for path in paths):
        assert sorted((reach(path, rates) for path in paths), reverse=True) == pytest.approx(best)


@pytest.mark.thorough(sample=1)
@settings(max_examples=30)
@given(
    rates=st.lists(st.lists(st.floats(0.01, 0.99), min_size=3, max_size=3), min_size=6, max_size=6),
    nodes=st.integers(2, 20),
    depth=st.integers(1, 6),
)
@pytest.mark.parametrize("policy", [chain, static, delayed])
def test_sizes_promise_the_tokens_of_the_tree_that_is_grown(
    policy: ModuleType, rates: Rates, nodes: int, depth: int
) -> None:
    """Compare with the sum of the probabilities of all nodes of the tree that is grown in this size."""
    steps = 64 if policy is delayed else 32
    rates = [[round(steps * rate) / steps for rate in row] for row in rates]  # ``sizes`` rounds to these steps
    accept = np.array(rates, np.float32)
    options = {"selects": False} if policy is delayed else {}  # its selector follows the draft
    sizes = policy.create().sizes(Limits(nodes=nodes, depth=depth, positions=64), accept)
    assert sizes
    for size in sizes[:: max(1, len(sizes) // 6)]:
        assert 1 < size.nodes <= nodes
        assert 1 <= size.depth <= depth
        limits = Limits(nodes=size.nodes, depth=size.depth, positions=64)
        tree = alone(policy.create(**options).grow(FakeDraft(table(3, 20), limits), TEXT, limits, COST, accept))
        if len(tree.tokens) < size.nodes:
            continue  # this draft has fewer guesses
        paths: list[tuple[int, ...]] = [()]
        for node in range(1, len(tree.tokens)):
            parent = int(tree.parents[node])
            rank = tree.parents[:node].tolist().count(parent)
            paths.append((*paths[parent], rank))
        assert size.depth == max(map(len, paths))
        assert size.tokens == pytest.approx(sum(reach(path, rates) for path in paths), abs=1e-5)


def test_the_documented_shapes_are_built() -> None:
    rates = 8 * [[0.62, 0.25, 0.16, 0.14]]
    assert [len(level) for level in static.shape(8, 8, rates)] == [2, 2, 1, 1, 1]
    assert [len(level) for level in static.shape(16, 8, rates)] == [4, 3, 4, 1, 1, 1, 1]


def test_a_static_shape_follows_the_acceptance_within_four_rounds() -> None:
    limits, policy = Limits(nodes=5, depth=4, positions=64), static.create()
    trees = []
    for rates in [[0.9, 0.1]] * 2 + [[0.1, 0.9]] * 4:
        tree = alone(policy.grow(FakeDraft(table(3, 9), limits), TEXT, limits, COST, np.array([rates] * 4, np.float32)))
        trees.append(tree.parents.tolist())
    assert trees[0] == trees[1] == [-1, 0, 1, 2, 3]
    assert trees[-1] == [-1, 0, 0, 0, 0] or trees[-1][1:3] == [0, 0]


def test_static_calls_the_draft_once_per_level_and_leaves_missing_guesses_empty() -> None:
    limits = Limits(nodes=8, depth=8, positions=64)
    accept = np.array(8 * [[0.6, 0.3]], np.float32)
    draft = FakeDraft(table(3, 5), limits)
    tree = alone(static.create().grow(draft, TEXT, limits, COST, accept))
    assert (len(tree.tokens), len(draft.asked)) == (8, 5)
    draft = FakeDraft(table(3, 5, certain=True), limits)
    tree = alone(static.create().grow(draft, TEXT, limits, COST, accept))
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3, 4]  # the draft has no token for the branches


accepts = st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=2), min_size=6, max_size=6)


def some_token_right(shape: delayed.Plan, accept: Rates) -> float:
    """Compute ``expected`` over every way in which guesses can be right: along the stem, then along one branch."""
    stem, branches = shape
    firsts, total = [rates[0] for rates in accept], 0.0
    for right in range(stem):  # the stem breaks after ``right`` tokens
        total += right * math.prod(firsts[:right]) * (1 - firsts[right])
    come = math.prod(firsts[:stem])
    missed = come
    for rank, length in enumerate(branches):
        come_here = come * reach((rank,), [accept[stem]])
        missed -= come_here
        for right in range(1, length + 1):
            goes_on = firsts[stem + right] if right < length else 0.0
            total += (stem + right) * come_here * (1 - goes_on)
            come_here *= goes_on
    return total + stem * missed


@settings(max_examples=30)
@given(accept=accepts, nodes=st.integers(1, 10))
def test_delayed_plans_stay_within_their_limits_and_reach_their_expectation(accept: Rates, nodes: int) -> None:
    accept = [sorted(row, reverse=True) for row in accept]
    shape = delayed.plan(nodes, 6, tuple(map(tuple, accept)))
    stem, branches = shape
    assert 1 + stem + sum(branches) <= nodes
    assert stem + max(branches, default=0) <= 6
    assert len(branches) <= delayed.BRANCHES
    assert delayed.expected(shape, accept) == pytest.approx(some_token_right(shape, accept), abs=1e-9)
    best = delayed.expected(shape, accept)
    for length in range(min(6, nodes - 1) + 1):
        # With the better guesses first, a longer branch is never worth more at a later place.
        lower = range(6 - length, -1, -1)
        for lengths in combinations_with_replacement(lower, delayed.BRANCHES if length < 6 else 0):
            if length + sum(lengths) < nodes:
                assert delayed.expected((length, lengths), accept) <= best + 1e-9


@pytest.mark.parametrize(
    ("accept", "parents"),
    [
        ([1.0] * 6, [-1, 0, 1, 2, 3, 4, 5]),  # all guesses are right: a chain
        ([0.3] * 6, [-1, 0, 0, 0, 0, 0, 1, 2]),  # the first one fails: branches from the root
        ([1.0, 1.0, 0.3, 0.3, 0.3, 0.3], [-1, 0, 1, 2, 2, 2, 2, 3]),  # it fails after two
    ],
)
def test_branches_begin_where_guesses_fail(accept: list[float], parents: list[int]) -> None:
    limits = Limits(nodes=8, depth=6, positions=64)
    tree = alone(
        delayed.create(selects=False).grow(
            FakeDraft(table(4, 6), limits), TEXT, limits, COST, np.array(accept, np.float32)[:, None]
        )
    )
    assert tree.parents.tolist() == parents
    assert len(paths_of(tree)) == len(parents)


def test_delayed_calls_the_draft_once_per_level_and_accepts_few_guesses() -> None:
    limits = Limits(nodes=8, depth=6, positions=64)
    draft = FakeDraft(table(4, 6), limits)
    alone(delayed.create(selects=False).grow(draft, TEXT, limits, COST, np.full((6, 1), 0.3, np.float32)))
    assert draft.asked == [[0], [1, 2]]
    draft = FakeDraft(table(4, 6, certain=True), limits)
    tree = alone(delayed.create(selects=False).grow(draft, TEXT, limits, COST, np.full((6, 1), 0.3, np.float32)))
    assert tree.parents.tolist() == [-1, 0, 1]
    draft = FakeDraft(lambda path: {2: 0.5} if len(path) < 2 else {}, limits)
    tree = alone(delayed.create(selects=False).grow(draft, TEXT, limits, COST, np.ones((6, 1), np.float32)))
    assert tree.parents.tolist() == [-1, 0]


def test_the_sizes_of_a_depth_are_those_of_a_search_of_its_own() -> None:
    accept = np.array([[0.75, 0.25, 0.125]] * 7, np.float32)
    sizes = static.create().sizes(Limits(nodes=8, depth=7, positions=64), accept)
    assert len({size[:2] for size in sizes}) == len(sizes)
    for depth in (1, 2, 3, 4, 5, 6, 7):
        tokens = 1.0
        own = list(static.best_nodes(8, depth, accept.tolist()))
        for count, (value, _, _) in enumerate(own, start=2):
            tokens += value
            levels = 1 + max(level for _, level, _ in own[: count - 1])
            found = [size.tokens for size in sizes if size[:2] == (count, levels)]
            assert found in ([], [pytest.approx(tokens)])
            assert found or depth < 3  # the flattest shapes end where a deeper tree has better nodes


def test_sizes_follow_the_acceptance_and_not_the_one_before() -> None:
    limits, policy = Limits(nodes=4, depth=3, positions=64), static.create()
    for rate in (0.25, 0.75, 0.25):
        first = policy.sizes(limits, np.full((3, 2), rate, np.float32))[0]
        assert first == (2, 1, 1 + rate)
    assert not policy.sizes(Limits(nodes=1, depth=0, positions=64), np.zeros((0, 2), np.float32))


@pytest.mark.thorough
def test_a_session_renews_a_shape_every_four_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the compiled loop has more rounds than a shape is for."""
    shapes: list[static.Shape] = []
    find = static.shape

    def found(*arguments: Any) -> static.Shape:
        shapes.append(find(*arguments))
        return shapes[-1]

    monkeypatch.setattr(static, "shape", found)
    monkeypatch.setattr(Adaptive, "_judge", lambda self: None)
    monkeypatch.setattr(Adaptive, "size", lambda self, policy, limits, past: limits)
    spec = SpecConfig(drafter="copy", policy="static", draft_max=3, tree_nodes=4)
    with Session.open(demo.bundle_path("demo"), ctx_size=256, spec=spec, threads=1) as session:
        answer = session.generate("Tim saw a dog. Tim saw", n_predict=120, ignore_eos=True)
    rounds = answer.timings.rounds.count
    assert rounds > 40
    assert rounds / 4 <= len(shapes) <= rounds / 4 + 2
