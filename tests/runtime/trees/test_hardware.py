from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.plugins import load
from edgedec.runtime.drafting import alone
from edgedec.runtime.protocols import I32, Limits, Sparse, TokenTree
from edgedec.runtime.trees.hardware import create
from tests.runtime.trees.support.fake_draft import TEXT, FakeCost, FakeDraft, best_paths, path_of, paths_of, table


class Clock:
    """Advance only while the draft works, in steps that floats add exactly."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowDraft(FakeDraft):
    clock: Clock
    call_seconds: float

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        self.clock.now += self.call_seconds
        return super().expand(text, tree, nodes)


def rates(values: list[float], seconds: list[float], call_seconds: float) -> list[float]:
    """Return tokens per second by number of nodes, for values of the nodes in order and one call for each but the
    first.
    """
    return [sum(values[: n + 1]) / (seconds[n] + n * call_seconds) for n in range(len(values))]


random_accept = st.lists(st.floats(0.05, 1), min_size=8, max_size=8)
random_seconds = st.lists(st.floats(0.001, 0.4), min_size=12, max_size=12)


@pytest.mark.thorough
@settings(max_examples=80)
@given(
    seed=st.integers(0, 10_000),
    nodes=st.integers(1, 12),
    depth=st.integers(1, 4),
    accept=random_accept,
    steps=random_seconds,
    flat=st.booleans(),
)
def test_the_size_is_the_argmax_if_drafting_is_free(
    seed: int, nodes: int, depth: int, accept: list[float], steps: list[float], flat: bool
) -> None:
    limits = Limits(nodes=nodes, depth=depth, positions=64)
    seconds = (0.5 + np.cumsum(steps) * (0.1 if flat else 1)).tolist()
    guess = table(seed, 3)
    accept_rates = np.array(accept[:depth], np.float32)[:, None]
    tree = alone(create(clock=Clock()).grow(FakeDraft(guess, limits), TEXT, limits, FakeCost(seconds), accept_rates))
    best = best_paths(guess, nodes, depth, 3, accept_rates[:, 0].tolist())
    expected = rates([value for value, _ in best], seconds, 0)
    size = len(tree.tokens)
    assert expected[size - 1] == pytest.approx(max(expected), rel=1e-9)
    assert paths_of(tree) == {path for _, path in best[:size]}


@pytest.mark.thorough
@settings(max_examples=80)
@given(accept=random_accept, steps=random_seconds, call=st.integers(0, 40), seed=st.integers(0, 99))
def test_the_size_is_the_argmax_for_a_chain_with_one_call_per_node(
    accept: list[float], steps: list[float], call: int, seed: int
) -> None:
    limits = Limits(nodes=9, depth=8, positions=64)
    seconds = (0.5 + np.cumsum(steps)).tolist()
    policy = create(clock=(clock := Clock()))
    draft = SlowDraft(table(seed, 3, certain=True), limits)
    draft.clock, draft.call_seconds = clock, call / 128
    alone(
        policy.grow(draft, TEXT, limits, FakeCost([1e-9] * 9), np.ones((8, 1), np.float32))
    )  # learns the time of a call
    draft.asked.clear()
    policy._cost = None  # another model of the target
    accept_rates = np.array(accept, np.float32)[:, None]
    tree = alone(policy.grow(draft, TEXT, limits, FakeCost(seconds), accept_rates))
    values = np.cumprod([1.0, *accept_rates[:, 0].astype(np.float64)]).tolist()
    expected = rates(values, seconds, draft.call_seconds)
    assert expected[len(tree.tokens) - 1] == pytest.approx(max(expected), rel=1e-9)
    assert len(draft.asked) == len(tree.tokens) - 1, "more was drafted than used"


def test_without_gain_the_draft_is_not_called() -> None:
    limits = Limits(nodes=8, depth=7, positions=64)
    draft = FakeDraft(table(0, 3, certain=True), limits)
    cost = FakeCost([1.0 * n for n in range(1, 9)])  # a node costs as much as a pass: only certain guesses would pay
    tree = alone(create(clock=Clock()).grow(draft, TEXT, limits, cost, np.full((7, 1), 0.9, np.float32)))
    assert len(tree.tokens) == 1
    assert tree.draft == {}
    assert draft.asked == []


def test_before_any_measurement_the_tree_has_the_largest_size() -> None:
    limits = Limits(nodes=8, depth=7, positions=64)
    tree = alone(
        create().grow(
            FakeDraft(table(0, 3), limits), TEXT, limits, FakeCost([0.0] * 8), np.full((7, 1), 0.1, np.float32)
        )
    )
    assert len(tree.tokens) == 8


def test_correct_confidence_is_not_discounted_twice() -> None:
    """Check a draft that says 0.7 and is right 7 times in 10: it is worth 0.7, not 0.49; one that says 1 is worth 0.7
    as well.
    """
    limits = Limits(nodes=2, depth=1, positions=64)
    for confidence in (1.0, 0.7):
        policy = create(clock=Clock())
        draft = FakeDraft(lambda path, confidence=confidence: {5: confidence}, limits)  # type: ignore[misc]
        accept = np.array([[0.7]], np.float32)
        for _ in range(3):
            alone(policy.grow(draft, TEXT, limits, FakeCost([1.0, 1.0]), accept))
        policy._cost = None
        assert len(alone(policy.grow(draft, TEXT, limits, FakeCost([1.0, 1.6]), accept)).tokens) == 2
        policy._cost = None
        assert len(alone(policy.grow(draft, TEXT, limits, FakeCost([1.0, 1.8]), accept)).tokens) == 1


def test_further_guesses_do_not_lower_the_worth_of_first_ones() -> None:
    """Check that the acceptance of first guesses is compared with what was promised for first guesses alone."""
    limits, accept = Limits(nodes=3, depth=1, positions=64), np.array([[0.6, 0.75]], np.float32)
    policy = create(clock=Clock())
    draft = FakeDraft(lambda path: {5: 0.6, 6: 0.3}, limits)
    for _ in range(3):
        tree = alone(policy.grow(draft, TEXT, limits, FakeCost([1.0, 1.1, 1.2]), accept))
        assert tree.parents.tolist() == [-1, 0, 0]
    assert policy._factors(accept, 1) == pytest.approx([1.0])


def test_one_slow_call_does_not_end_speculation_forever() -> None:
    limits = Limits(nodes=4, depth=3, positions=64)
    policy = create(clock=(clock := Clock()))
    draft = SlowDraft(table(0, 3, certain=True), limits)
    draft.clock, draft.call_seconds = clock, 2.0
    cost = FakeCost([1.0, 1.0, 1.1, 1.2])
    accept = np.full((3, 1), 0.9, np.float32)
    alone(policy.grow(draft, TEXT, limits, cost, accept))
    draft.call_seconds = 0.001
    sizes = [len(alone(policy.grow(draft, TEXT, limits, cost, accept)).tokens) for _ in range(400)]
    assert sizes[0] == 1
    assert sizes[-1] == 4


def test_drawn_children_are_never_cut() -> None:
    """Check that the tree holds a node for every number that the generator gave."""
    limits = Limits(nodes=10, depth=4, positions=64)

    class Counting(np.random.Generator):
        count = 0

        def random(self, *args: object, **named: object) -> float:  # type: ignore[override]
            Counting.count += 1
            return float(super().random())

    rng = Counting(np.random.PCG64(3))
    sizes = set()
    for seed in range(60):
        policy = create(rng, clock=Clock())
        before = Counting.count
        cost = FakeCost((1 + 0.08 * np.arange(10) ** 1.5).tolist())
        tree = alone(
            policy.grow(FakeDraft(table(seed, 4), limits), TEXT, limits, cost, np.full((4, 1), 0.7, np.float32))
        )
        sizes.add(len(tree.tokens))
        one_token = sum(len(table(seed, 4)(p)) == 1 for p in paths_of(tree))
        assert Counting.count - before >= len(tree.tokens) - 1 - one_token
        assert Counting.count - before <= len(tree.tokens) - 1
    assert len(sizes) > 1


def _tokens_per_second(
    name: str, nodes: int, *, spread: float, sharpness: float, call: float, seconds: list[float], rounds: int
) -> float:
    """Measure a target with a random distribution after each path, and a draft that sharpens it, as the decoder does."""
    clock, rng = Clock(), np.random.default_rng(1)
    policy = load("edgedec.runtime.trees", name).create(**({"clock": clock} if name == "hardware" else {}))
    limits = Limits(nodes=nodes, depth=7, positions=64)
    hits, tries, tokens, passed, at = np.zeros(7), np.zeros(7), 0, 0.0, 0

    def truth(path: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.random.default_rng([at, *path]).dirichlet(np.full(8, spread))

    def guess(path: tuple[int, ...]) -> dict[int, float]:
        sharper = truth(path) ** sharpness
        return {token: prob / sharper.sum() for token, prob in enumerate(sharper) if prob > 0}

    draft = SlowDraft(guess, limits)
    draft.clock, draft.call_seconds = clock, call
    for at in range(rounds):  # noqa: B007 (read by truth)
        draft.before = None
        accept = ((hits + 1.6) / (tries + 2)).astype(np.float32)[:, None]
        tree = alone(policy.grow(draft, TEXT, limits, FakeCost(seconds), accept))
        node, depth = 0, 0
        while len(children := np.flatnonzero(tree.parents == node)):
            tries[depth] += 1
            token = rng.choice(8, p=truth(path_of(tree, node)))
            matches = [int(child) for child in children if tree.tokens[child] == token]
            if not matches:
                break
            hits[depth] += matches[0] == children[0]  # ``accept`` is that of first guesses
            node, depth = matches[0], depth + 1
        hits, tries = hits * 0.98, tries * 0.98
        tokens, passed = tokens + depth + 1, passed + seconds[len(tree.tokens) - 1]
    return tokens / (passed + clock.now)


RISING = [1, 1.02, 1.15, 1.4, 1.7, 2.0, 2.3, 2.6]
FLAT = [1 + 0.01 * n for n in range(8)]


@pytest.mark.nightly
@pytest.mark.parametrize("spread", [0.05, 0.15])
@pytest.mark.parametrize("sharpness", [1.0, 2.0])
@pytest.mark.parametrize("call", [0.0, 0.05])
@pytest.mark.parametrize("seconds", [RISING, FLAT], ids=["rising", "flat"])
def test_the_policy_keeps_up_with_the_best_fixed_size(
    spread: float, sharpness: float, call: float, seconds: list[float]
) -> None:
    """Check that the best of ten fixed policies, chosen afterwards, is at most 3 % faster."""

    def run(name: str, nodes: int) -> float:
        return _tokens_per_second(
            name, nodes, spread=spread, sharpness=sharpness, call=call, seconds=seconds, rounds=400
        )

    fixed = max(run(name, nodes) for name in ("chain", "dynamic") for nodes in (2, 3, 4, 6, 8))
    assert run("hardware", 8) > 0.97 * fixed
