from __future__ import annotations

import pytest

from edgedec.runtime.decoders.cost import ObservedCost


def observed(**by_size: float) -> ObservedCost:
    cost = ObservedCost()
    for size, seconds in by_size.items():
        cost.observe(int(size.removeprefix("n")), seconds)
    return cost


def test_nothing_is_known_before_the_first_pass() -> None:
    assert ObservedCost().seconds(4, 100) == 0.0


def test_a_size_that_was_seen_costs_what_its_passes_took() -> None:
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


def test_what_slows_one_size_down_slows_all() -> None:
    """The context has grown, or the machine has other work: plain passes would be slower too, were there any."""
    cost = observed(n1=1.0, n4=2.0)
    for _ in range(10):
        cost.observe(4, 2.0)
    for _ in range(12):
        cost.observe(4, 3.0)
    assert cost.seconds(4, 0) == pytest.approx(3.0, rel=0.02)
    assert cost.seconds(1, 0) == pytest.approx(1.5, rel=0.15)
    cost.observe(2, 1.8)  # new, measured while all is slow
    for _ in range(12):
        cost.observe(4, 2.0)
    assert cost.seconds(2, 0) == pytest.approx(1.2, rel=0.15)


def test_a_size_that_alone_gets_slower_is_found_out() -> None:
    cost = observed(n1=1.0, n4=2.0)
    for _ in range(120):
        cost.observe(1, 1.0)
        cost.observe(4, 4.0)
    assert cost.seconds(4, 0) / cost.seconds(1, 0) == pytest.approx(4.0, rel=0.15)


def test_between_sizes_it_is_a_straight_line() -> None:
    cost = observed(n8=2.4, n2=1.2, n16=2.0)
    assert [cost.seconds(size, 0) for size in (2, 3, 5, 7, 8)] == pytest.approx([1.2, 1.4, 1.8, 2.2, 2.4])
    assert cost.seconds(12, 0) == pytest.approx(2.2)  # a larger pass may be faster: that is how kernels are


def test_beyond_them_the_line_goes_on() -> None:
    cost = observed(n6=1.4)  # 1.0 for one node, by the usual slope
    assert [cost.seconds(size, 0) for size in (1, 6, 11)] == pytest.approx([1.0, 1.4, 1.8])
    cost.observe(1, 0.5)
    assert [cost.seconds(size, 0) for size in (1, 2, 6, 11)] == pytest.approx([0.5, 0.5 + 0.9 / 5, 1.4, 2.3])
    assert observed(n8=2.0, n4=3.0).seconds(16, 0) == pytest.approx(2.0)  # never down


class Known:
    """What a device's passes cost, by size and past."""

    def seconds(self, nodes: int, past: int) -> float:
        return 1.0 + 0.1 * nodes + 0.01 * past


def test_a_model_that_is_given_is_believed_before_the_first_pass() -> None:
    cost = ObservedCost(Known())
    assert cost.seconds(1, 0) == pytest.approx(1.1)
    assert cost.seconds(4, 100) == pytest.approx(2.4)


def test_of_a_model_that_is_given_only_the_drift_is_observed() -> None:
    cost = ObservedCost(Known())
    for past in range(50):
        cost.observe(4, Known().seconds(4, past), past)
    assert cost.seconds(1, 70) == pytest.approx(1.8)  # as it says: passes took what it said
    for past in range(50, 70):
        cost.observe(4, 1.5 * Known().seconds(4, past), past)
    assert cost.seconds(1, 70) == pytest.approx(1.5 * 1.8)
    cost.observe(4, 60.0, 70)
    assert cost.seconds(1, 70) == pytest.approx(1.5 * 1.8)
