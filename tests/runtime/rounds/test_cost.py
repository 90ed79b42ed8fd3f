from __future__ import annotations

import random

import pytest

from edgedec.runtime.rounds.cost import ObservedCost


def observed(**by_size: float) -> ObservedCost:
    cost = ObservedCost()
    for size, seconds in by_size.items():
        cost.observe(int(size.removeprefix("n")), seconds)
    return cost


def test_costs_are_unknown_before_the_first_pass() -> None:
    assert ObservedCost().seconds(4, 100) == 0.0


def test_an_observed_size_costs_the_time_of_its_passes() -> None:
    cost = ObservedCost()
    for seconds in (2.0, 1.9, 2.0, 30.0, 2.0, 2.0, 2.1):
        cost.observe(4, seconds)
    assert cost.seconds(4, 0) == cost.seconds(4, 1000) == pytest.approx(2.0, rel=0.15)


def test_one_slow_pass_changes_nothing() -> None:
    cost = observed(n1=1.0, n4=2.0)
    for _ in range(10):
        cost.observe(4, 2.0)
    cost.observe(4, 60.0)
    assert cost.seconds(1, 0) == pytest.approx(1.0, rel=0.06)
    assert cost.seconds(4, 0) == pytest.approx(2.0, rel=0.06)


def test_a_size_that_slows_down_slows_all_sizes() -> None:
    """Model a longer context or a busy machine, which would make plain passes slower too."""
    cost = observed(n1=1.0, n4=2.0)
    for _ in range(10):
        cost.observe(4, 2.0)
    for _ in range(12):
        cost.observe(4, 3.0)
    assert cost.seconds(4, 0) == pytest.approx(3.0, rel=0.02)
    assert cost.seconds(1, 0) == pytest.approx(1.5, rel=0.15)
    cost.observe(2, 1.8)  # a new size, measured while all are slow
    for _ in range(12):
        cost.observe(4, 2.0)
    assert cost.seconds(2, 0) == pytest.approx(1.2, rel=0.15)


def test_a_size_that_slows_down_alone_is_recognized() -> None:
    cost = observed(n1=1.0, n4=2.0)
    for _ in range(120):
        cost.observe(1, 1.0)
        cost.observe(4, 4.0)
    assert cost.seconds(4, 0) / cost.seconds(1, 0) == pytest.approx(4.0, rel=0.15)


def test_a_long_run_with_slow_passes_forgets_no_size() -> None:
    """Every twentieth pass takes eight times as long as usual, on a machine that others use, too."""
    rng, cost, seconds = random.Random(1), ObservedCost(), {1: 1.0, 3: 1.2, 8: 2.0}
    for size in seconds:
        for _ in range(10):
            cost.observe(size, seconds[size])
    for at in range(20_000):
        size = 3 if at % 50 == 0 else 1
        cost.observe(size, seconds[size] * (1 + rng.expovariate(3)) * (8 if rng.random() < 0.05 else 1))
    assert [cost.seconds(size, 0) / cost.seconds(1, 0) for size in (3, 8)] == pytest.approx([1.2, 2.0], rel=0.25)


def test_costs_between_sizes_are_a_straight_line() -> None:
    cost = observed(n8=2.4, n2=1.2, n16=2.0)
    assert [cost.seconds(size, 0) for size in (2, 3, 5, 7, 8)] == pytest.approx([1.2, 1.4, 1.8, 2.2, 2.4])
    assert cost.seconds(12, 0) == pytest.approx(2.2)  # a larger pass may be faster with some kernels


def test_costs_beyond_the_sizes_continue_the_line() -> None:
    cost = observed(n6=1.4)  # 1.0 for one node, by the default slope
    assert [cost.seconds(size, 0) for size in (1, 6, 11)] == pytest.approx([1.0, 1.4, 1.8])
    cost.observe(1, 0.5)
    assert [cost.seconds(size, 0) for size in (1, 2, 6, 11)] == pytest.approx([0.5, 0.5 + 0.9 / 5, 1.4, 2.3])
    assert observed(n8=2.0, n4=3.0).seconds(16, 0) == pytest.approx(2.0)  # never decreasing


class Known:
    """Return what a device's passes cost, by size and past."""

    def seconds(self, nodes: int, past: int) -> float:
        return 1.0 + 0.1 * nodes + 0.01 * past


def test_a_given_model_is_used_before_the_first_pass() -> None:
    cost = ObservedCost(Known())
    assert cost.seconds(1, 0) == pytest.approx(1.1)
    assert cost.seconds(4, 100) == pytest.approx(2.4)


def test_a_given_model_is_corrected_by_the_drift_only() -> None:
    cost = ObservedCost(Known())
    for past in range(50):
        cost.observe(4, Known().seconds(4, past), past)
    assert cost.seconds(1, 70) == pytest.approx(1.8)  # unchanged: passes took as long as the model says
    for past in range(50, 70):
        cost.observe(4, 1.5 * Known().seconds(4, past), past)
    assert cost.seconds(1, 70) == pytest.approx(1.5 * 1.8)
    cost.observe(4, 60.0, 70)
    assert cost.seconds(1, 70) == pytest.approx(1.5 * 1.8)
