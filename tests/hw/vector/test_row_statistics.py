from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.vector.row_statistics import RowStatistics
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.ops.rms_norm import sums_of_squares
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, to_words


def expected(x: I64, squares: bool) -> dict[str, Any]:
    small, big = sums_of_squares(x) if squares else np.zeros((2, len(x)), np.int64)
    return {"absmax": np.abs(x).max(axis=1, initial=0).tolist(), "small": small.tolist(), "big": big.tolist()}


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(
    ("slots", "lanes", "squares"),
    [(1, 5, True), (2, 5, False), (3, 1, True), (8, 1, True), (1, 2, False), (8, 1, False)],
)
def test_statistics_equal_the_profile(slots: int, lanes: int, squares: bool, idle: float, stall: float) -> None:
    rng = np.random.default_rng(slots * 10 + lanes)
    vectors = [awkward(rng, slots, width) for width in (1, 5, 4, 13, 6, 11, 40)]
    items = [word for x in vectors for word in to_words(x, lanes)]
    cycles: dict[str, list[int]] = {}
    collected = run(
        RowStatistics(slots=slots, lanes=lanes, squares=squares),
        {"input": items},
        {"output": len(vectors)},
        idle=idle,
        stall=stall,
        cycles=cycles,
    )["output"]
    assert collected == [expected(x, squares) for x in vectors]
    if not idle and not stall:
        latency = (lanes - 1).bit_length() + (3 if squares else 1)
        assert cycles["output"][-1] - cycles["input"][-1] == latency


def test_vectors_of_three_words_and_more_follow_without_a_gap() -> None:
    rng = np.random.default_rng(4)
    vectors = [awkward(rng, 1, width) for width in (11, 3, 40, 12)]
    items = [word for x in vectors for word in to_words(x)]
    cycles: dict[str, list[int]] = {}
    run(RowStatistics(slots=1, squares=True), {"input": items}, {"output": 4}, cycles=cycles)
    assert cycles["input"][-1] - cycles["input"][0] == len(items) - 1


def test_extremes_fill_the_sums_without_overflow() -> None:
    limit = (1 << 26) - 1
    x = np.full((2, 300), -limit)
    x[1] = -(1 << 17)  # the largest square of the small sum
    outputs = run(RowStatistics(slots=2, squares=True), {"input": to_words(x)}, {"output": 1})["output"]
    assert outputs == [expected(x, True)]
    assert outputs[0]["big"][0] == 300 << 34


def test_a_stalled_result_holds_the_next_vector_back() -> None:
    vectors = [np.full((1, 2), value) for value in (3, -7, 5)]
    items = [word for x in vectors for word in to_words(x)]
    cycles: dict[str, list[int]] = {}
    outputs = run(RowStatistics(slots=1, squares=True), {"input": items}, {"output": 3}, stall=0.97, cycles=cycles)[
        "output"
    ]
    assert [item["absmax"] for item in outputs] == [[3], [7], [5]]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"slots": 9}, "slots must be an integer from 1 to 8, not 9"),
        ({"slots": 1, "lanes": 0}, "lanes must be an integer from 1 to 64, not 0"),
        ({"slots": True}, "slots must be an integer from 1 to 8, not True"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        RowStatistics(squares=True, **parameters)
