from __future__ import annotations

import numpy as np
import pytest

from edgedec.hw.vector.sums_of_squares import SumsOfSquares
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.ops.rms_norm import sums_of_squares
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, to_words


def expected(x: I64) -> list[dict[str, int]]:
    return [{"small": int(small), "big": int(big)} for small, big in zip(*sums_of_squares(x), strict=True)]


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_sums_equal_the_profile(slots: int, idle: float, stall: float) -> None:
    rng = np.random.default_rng(slots)
    vectors = [awkward(rng, slots, width) for width in (1, 5, 4, 13, 6, 11, 40)]
    items = [word for x in vectors for word in to_words(x)]
    cycles: dict[str, list[int]] = {}
    component = SumsOfSquares(slots=slots)
    actual = run(component, {"input": items}, {"output": 7}, idle=idle, stall=stall, cycles=cycles)["output"]
    assert actual == [expected(x) for x in vectors]
    if not idle and not stall:
        assert cycles["output"][-1] - cycles["input"][-1] == 5
        assert cycles["input"][-1] - cycles["input"][-40] == 39


def test_extremes_fill_the_sums_without_overflow() -> None:
    x = np.full((2, 300), -((1 << 26) - 1))
    x[1] = -(1 << 17)  # the largest square of the small sum
    (sums,) = run(SumsOfSquares(slots=2), {"input": to_words(x)}, {"output": 1})["output"]
    assert sums == expected(x)
    assert sums[0]["big"] == 300 << 34


def test_sums_have_the_bits_of_the_profile() -> None:
    (sums,) = SumsOfSquares(slots=1).output.payload
    assert (len(sums.small), len(sums.big)) == (48, 48)


def test_a_stalled_result_holds_the_next_vector_back() -> None:
    vectors = [np.full((1, 2), value) for value in (3, -7, 5)]
    items = [word for x in vectors for word in to_words(x)]
    actual = run(SumsOfSquares(slots=1), {"input": items}, {"output": 3}, stall=0.97)["output"]
    assert [sums[0]["small"] for sums in actual] == [18, 98, 50]


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^slots must be an integer from 1 to 8, not 9$"):
        SumsOfSquares(slots=9)
