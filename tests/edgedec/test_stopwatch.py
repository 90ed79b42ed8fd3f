"""Test the stopwatch: every moment belongs to one phase, so that the parts add up."""

from __future__ import annotations

import pytest

from edgedec.stopwatch import Stopwatch


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_nested_phases_add_up() -> None:
    clock = Clock()
    watch = Stopwatch("writing", clock=clock)
    clock.now += 1
    with watch.phase("quantizing"):
        clock.now += 2
        with watch.phase("reading"):
            clock.now += 4
        clock.now += 8
    clock.now += 16
    assert watch.seconds() == {"writing": 17, "quantizing": 10, "reading": 4}
    clock.now += 32
    assert watch.seconds()["writing"] == 49, "it goes on"


def test_a_phase_ends_with_an_error() -> None:
    clock = Clock()
    watch = Stopwatch("writing", clock=clock)

    def fail() -> None:
        clock.now += 2
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), watch.phase("reading"):
        fail()
    clock.now += 1
    assert watch.seconds() == {"writing": 1, "reading": 2}


@pytest.mark.parametrize(("moved", "left"), [(3.0, 7.0), (30.0, 0.0), (-1.0, 10.0)])
def test_moved_time_is_at_most_what_is_there(moved: float, left: float) -> None:
    clock = Clock()
    watch = Stopwatch("quantizing", clock=clock)
    clock.now += 10
    watch.move("quantizing", "reading", moved)
    seconds = watch.seconds()
    assert seconds["quantizing"] == left
    assert sum(seconds.values()) == 10
