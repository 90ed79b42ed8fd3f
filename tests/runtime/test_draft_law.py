"""Test the law of acceptance against draft size."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.runtime.planning.draft_law import DraftLaw, MeasuredDraft, fit_law, left_out

SIZES = (100_000, 200_000, 400_000, 1_000_000, 2_000_000)


def drafts(*pairs: tuple[int, float]) -> list[MeasuredDraft]:
    return [MeasuredDraft(name=str(size), parameters=size, acceptance=value) for size, value in pairs]


@given(
    intercept=st.floats(-14, -11),
    slope=st.floats(0.8, 1.1),
    floor=st.floats(0, 0.2),
    ceiling=st.floats(0.4, 1),
    noise=st.floats(-0.01, 0.01),
)
def test_drafts_that_follow_a_law_give_it_back(
    intercept: float, slope: float, floor: float, ceiling: float, noise: float
) -> None:
    law = DraftLaw(intercept=intercept, slope=slope, floor=floor, ceiling=ceiling, smallest=SIZES[0], largest=SIZES[-1])
    exact = drafts(*((size, law.acceptance(size)) for size in SIZES))
    fitted = fit_law(exact, floor=floor, ceiling=ceiling)
    for size in (50_000, *SIZES, 4_000_000):
        assert fitted.acceptance(size) == pytest.approx(law.acceptance(size), abs=1e-3)
    assert (fitted.smallest, fitted.largest) == (SIZES[0], SIZES[-1])
    assert max(map(abs, left_out(exact, floor=floor, ceiling=ceiling))) < 2e-3
    # The error of a draft that is left out is the distance from where the others put it.
    moved = [
        *exact[:2],
        MeasuredDraft(name="", parameters=SIZES[2], acceptance=exact[2].acceptance + noise),
        *exact[3:],
    ]
    assert left_out(moved, floor=floor, ceiling=ceiling)[2] == pytest.approx(-noise, abs=2e-3)


def test_the_law_stays_between_floor_and_ceiling() -> None:
    law = fit_law(drafts((1000, 0.1), (10_000, 0.4), (100_000, 0.8)), floor=0.1, ceiling=0.8)
    values = [law.acceptance(10**power) for power in range(1, 12)]
    assert values == sorted(values)
    assert 0.1 <= values[0] < values[-1] <= 0.8
    assert all(math.isfinite(value) for value in values)
    assert [law.covers(size) for size in (999, 1000, 100_000, 100_001)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("points", "ceiling", "message"),
    [
        ([(1000, 0.3), (1000, 0.4)], 0.9, "at least two sizes, not 1; give more --draft"),
        ([(1000, 0.3), (2000, 0.4)], 0.1, "must be 0 <= floor < ceiling <= 1, not 0.1 and 0.1"),
        ([(1000, 0.3), (2000, 0.4)], 1.01, "must be 0 <= floor < ceiling <= 1, not 0.1 and 1.01"),
    ],
)
def test_a_fit_without_meaning_is_refused(points: Any, ceiling: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit_law(drafts(*points), floor=0.1, ceiling=ceiling)


def test_two_drafts_cannot_predict_each_other() -> None:
    with pytest.raises(UsageError, match="at least 3 are needed, not 2; give more --draft"):
        left_out(drafts((1000, 0.3), (2000, 0.4)), floor=0.1, ceiling=0.9)
