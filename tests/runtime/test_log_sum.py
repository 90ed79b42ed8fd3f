"""Test the log of the sum of exponentials: its value, its bits, and that the order of the logits does not matter."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgedec.runtime.protocols import F32
from edgedec.runtime.sampling import log_sum as module
from edgedec.runtime.sampling.log_sum import log_of, log_sum, weight_sum

ERROR = 2.0**-25  # relative error of a weight, as the module promises
UNIT = 2.0**-42

ROWS = hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-(2.0**60), 2.0**60, width=32))
NEAR_ROWS = hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-40, 40, width=32))


def exact(row: F32) -> float:
    scores = row.astype(np.float64)
    return float(scores.max()) + math.log(math.fsum(np.exp(scores - scores.max())))


@pytest.mark.thorough
@given(row=ROWS | NEAR_ROWS)
def test_the_sum_is_close_to_the_exact_one(row: F32) -> None:
    bound = ERROR + len(row) * UNIT + 4 * math.ulp(exact(row))
    assert log_sum(row) == pytest.approx(exact(row), rel=0, abs=bound)


@pytest.mark.thorough
@given(row=ROWS | NEAR_ROWS, seed=st.integers(0, 9))
def test_the_order_does_not_matter_and_weights_add_up(row: F32, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(row))
    assert log_sum(row[order]) == log_sum(row)
    assert weight_sum(row, row.max()) == sum(weight_sum(row[at : at + 1], row.max()) for at in range(len(row)))


@pytest.mark.thorough
@given(row=NEAR_ROWS)
def test_a_weight_is_that_of_the_documented_steps(row: F32) -> None:
    """Use Python's integers, which have no width."""
    total, largest = 0, row.max()
    for value in row:
        half = np.float32(np.float32(largest / np.float32(2)) - np.float32(value / np.float32(2)))
        if half < 15:
            error = Fraction(float(largest)) / 2 - Fraction(float(value)) / 2 - Fraction(float(half))
            octaves = (int(Fraction(float(half)) * 2**28) + int(error * 2**28)) * 3098164009
            power, fraction = module.TERMS[0], (octaves % 2**58) >> 26
            for term in module.TERMS[1:]:
                power = term - (power * fraction >> 32)
            total += (power << 11) >> (octaves >> 58)
    assert weight_sum(row, largest) == total
    assert log_sum(row) == log_of(float(largest), total)


def test_a_weight_never_grows_with_the_distance() -> None:
    distances = np.linspace(0, 31, 40_001, dtype=np.float32)
    weights = [weight_sum(-distances[at : at + 1], np.float32(0)) for at in range(0, len(distances), 40)]
    assert weights[0] == 1 << 42
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] == 0


def test_equal_logits_far_from_the_largest_have_no_common_error() -> None:
    """The difference of 7.9 and -0.3 has bits that float32 does not hold, and all of the sum has its error."""
    row = np.full(100_000, -0.3, np.float32)
    row[5] = 7.9
    assert log_sum(row) == pytest.approx(exact(row), rel=0, abs=ERROR)


def test_rows_longer_than_a_chunk_are_summed_completely() -> None:
    assert weight_sum(np.zeros(100_001, np.float32), np.float32(0)) == 100_001 << 42


@pytest.mark.parametrize("row", [[-3.5], [2.0, -np.inf, -np.inf], [3e38, -3e38, 0], [1e-45]])
def test_a_token_that_is_certain_has_its_own_logit(row: list[float]) -> None:
    assert log_sum(np.array(row, np.float32)) == float(np.float32(row[0]))


@pytest.mark.parametrize("row", [[1, np.nan], [1, np.inf], [-np.inf, -np.inf], [np.nan]])
def test_wrong_results_have_no_sum(row: list[float]) -> None:
    assert math.isnan(log_sum(np.array(row, np.float32)))


def test_the_bits_are_those_of_the_first_implementation() -> None:
    """A processor on which another instruction was chosen, a contraction for example, gives another hash."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(-(2**22), 2**22, 1 + 37 * at).astype(np.float32) / np.float32(2**18) for at in range(200)]
    bits = np.array([log_sum(row) for row in rows]).tobytes()
    assert hashlib.sha256(bits).hexdigest() == EXPECTED


EXPECTED = "bf737f65e5eb2e0c85b863585c2bb3d0bdf759346222a131dadd0068f36e0915"
