"""One suite over every drafter and one over every tree policy: what `protocols.py` promises of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.plugins import load, names
from edgedec.runtime.cost import ObservedCost
from edgedec.runtime.protocols import F32, I32, Limits, Outcome, Sparse, TargetInfo, TokenTree

VOCAB = 50
INFO = TargetInfo(
    vocab=VOCAB,
    tokenizer_hash="0" * 64,
    positions=256,
    variants=("full",),
    taps=(),
    masks="any",
    undo="slots",
    batch_invariant=True,
)
DRAFTERS, POLICIES = "edgedec.runtime.drafters", "edgedec.runtime.trees"


def root(text: list[int]) -> TokenTree:
    return TokenTree(tokens=np.array(text[-1:], np.int32), parents=np.array([-1], np.int32), draft={})


@pytest.mark.parametrize("name", names(DRAFTERS))
@given(text=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40))
def test_a_drafter_proposes_distributions_and_takes_outcomes(name: str, text: list[int]) -> None:
    drafter = load(DRAFTERS, name).create()
    limits = Limits(nodes=8, depth=4, positions=256)
    assert all(isinstance(size, int) and size >= 0 for size in drafter.footprint(limits).values())
    draft = drafter.open(INFO, limits)
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


class _Talkative:
    """A draft that always has ``width`` guesses."""

    def __init__(self, width: int) -> None:
        self.width = width

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        probs = np.arange(self.width, 0, -1, dtype=np.float32)
        return [Sparse(ids=np.arange(self.width, dtype=np.int32), probs=probs / max(1, probs.sum())) for _ in nodes]

    def riders(self, tree: TokenTree) -> tuple[I32, F32] | None:
        return None

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        return None


@pytest.mark.parametrize("name", names(POLICIES))
@given(width=st.integers(0, 5), nodes=st.integers(1, 16), depth=st.integers(0, 12), data=st.data())
def test_a_policy_grows_trees_within_the_limits(name: str, width: int, nodes: int, depth: int, data: Any) -> None:
    text = np.array(data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5)), np.int32)
    limits = Limits(nodes=nodes, depth=depth, positions=256)
    policy = load(POLICIES, name).create()
    tree = policy.grow(_Talkative(width), text, limits, ObservedCost(), np.ones(depth, np.float32))
    assert tree.tokens[0] == text[-1]
    assert tree.parents[0] == -1
    assert 1 <= len(tree.tokens) == len(tree.parents) <= nodes
    depths = [0]
    for node in range(1, len(tree.tokens)):
        parent = int(tree.parents[node])
        assert 0 <= parent < node
        depths.append(depths[parent] + 1)
        assert tree.tokens[node] in tree.draft[parent].ids  # what residuals are computed from
    assert max(depths) <= depth
    if width == 0 or depth == 0 or nodes == 1:
        assert len(tree.tokens) == 1
    else:
        assert len(tree.tokens) > 1


def test_observed_cost_is_the_median_of_the_nearest_size() -> None:
    cost = ObservedCost(window=3)
    assert cost.seconds(4, 0) == 0.0
    for seconds in (9.0, 1.0, 2.0, 3.0):  # the first falls out of the window
        cost.observe(1, seconds)
    cost.observe(8, 10.0)
    assert cost.seconds(1, 0) == cost.seconds(2, 100) == 2.0
    assert cost.seconds(7, 0) == 10.0
    assert cost.seconds(8, 0, batch=2) == 20.0
