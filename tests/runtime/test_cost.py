from __future__ import annotations

import pytest

from edgedec.runtime.cost import ObservedCost


def observed(**by_size: float) -> ObservedCost:
    cost = ObservedCost()
    for size, seconds in by_size.items():
        cost.observe(int(size.removeprefix("n")), seconds)
    return cost


def test_nothing_is_known_before_the_first_pass() -> None:
    assert ObservedCost().seconds(4, 100) == 0.0


def test_a_size_that_was_seen_costs_the_median_of_its_last_passes() -> None:
    cost = ObservedCost(window=3)
    for seconds in (9.0, 9.0, 1.0, 2.0, 30.0):  # the first two fall out of the window
        cost.observe(4, seconds)
    assert cost.seconds(4, 0) == cost.seconds(4, 1000) == 2.0
    assert cost.seconds(4, 0, batch=3) == 6.0


def test_between_sizes_it_is_a_straight_line() -> None:
    cost = observed(n8=2.4, n2=1.2, n16=2.0)
    assert [cost.seconds(size, 0) for size in (2, 3, 5, 7, 8)] == pytest.approx([1.2, 1.4, 1.8, 2.2, 2.4])
    assert cost.seconds(12, 0) == pytest.approx(2.2)  # a larger pass may be faster: that is how kernels are


def test_beyond_them_the_line_has_a_slope_of_its_own() -> None:
    cost = observed(n6=1.4)  # 1.0 for one node
    assert [cost.seconds(size, 0) for size in (1, 6, 11)] == pytest.approx([1.0, 1.4, 1.8])
    cost.observe(1, 0.5)
    assert [cost.seconds(size, 0) for size in (1, 6, 11)] == pytest.approx([0.5, 1.4, 1.8])
    assert cost.seconds(2, 0) == pytest.approx(0.5 + 0.9 / 5)
