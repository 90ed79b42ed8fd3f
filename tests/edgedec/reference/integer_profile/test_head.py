"""Test the sum of exponentials of the integer profile: its value, and what it does not depend on."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import UnsupportedError
from edgedec.reference.integer_profile import head
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.tables import octave_power, octave_table
from edgedec.reference.integer_profile.values import Logits

ERROR = 3e-4  # difference of the logarithm, as docs/integer-profile.md says


def row(values: I64, mantissa: int = 40000, exponent: int = -32) -> Logits:
    return Logits(values=values[None], mantissa=np.array([mantissa]), exponent=np.array([exponent]))


def word(logits: Logits) -> int:
    """Return the sum of the only row."""
    return int(head.sum_of_exponentials(logits.values, logits.mantissa, head.sum_shift(logits.exponent))[0])


def logarithm(logits: Logits) -> float:
    """Return ln(sum exp) of the only row."""
    largest = replace(logits, values=logits.values.max(axis=1, keepdims=True))
    return float(head.real(largest)[0, 0] + np.log(head.relative_sum(np.array([word(logits)]), largest)[0]))


def one_by_one(logits: Logits) -> int:
    """Compute the sum of the only row by docs/integer-profile.md, in Python integers."""

    def rounded(x: int, shift: int) -> int:
        return (x + (1 << shift >> 1)) >> shift

    powers = [math.floor(Fraction(2 ** (15 + i / 256)) + Fraction(1, 2)) for i in range(257)]
    factor = rounded(int(logits.mantissa[0]) * 47274, 15)
    sums: dict[int, int] = {}
    for logit in logits.values[0].tolist():
        e = rounded(logit * factor, min(max(-int(logits.exponent[0]) - 12, 0), 47))
        low, high = powers[(e >> 4) % 256], powers[(e >> 4) % 256 + 1]
        sums[e >> 12] = sums.get(e >> 12, 0) + low + rounded((high - low) * (e % 16), 4)
    total = 0
    for octave in range(max(sums) - 31, max(sums) + 1):
        total = (total >> 1) + (sums.get(octave, 0) << 8)
    left_out = max(total.bit_length() - 27, 0)
    return total >> left_out | left_out << 27


def test_the_powers_of_a_fraction_are_near_and_do_not_decrease() -> None:
    powers = octave_power(np.arange(4096))
    assert np.abs(powers - 2.0**15 * np.exp2(np.arange(4096) / 4096)).max() < 1
    assert (np.diff(powers) >= 0).all()
    assert powers[-1] < 1 << 16
    assert octave_table()[1].max() < 1 << 8


@given(
    st.lists(st.integers(-(2**31) + 1, 2**31 - 1), min_size=1, max_size=40),
    st.integers(0, 31),
    st.integers(1 << 15, (1 << 16) - 1),
    st.integers(-70, -12),
)
def test_the_sum_is_that_of_the_definition_in_any_order(
    values: list[int], narrower: int, mantissa: int, exponent: int
) -> None:
    logits = row(np.array(values) >> narrower, mantissa, exponent)
    assert word(logits) == one_by_one(logits)
    assert word(replace(logits, values=logits.values[:, ::-1])) == word(logits)
    assert word(replace(logits, values=np.sort(logits.values))) == word(logits)


@pytest.mark.parametrize("ids", [2, 1000, 150_000])
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 4.0, 12.0])
def test_the_logarithm_is_near_the_float_one(ids: int, spread: float) -> None:
    rng = np.random.default_rng(ids)
    logits = row(np.round(rng.normal(0, spread, ids) / (40000 * 2.0**-32)).astype(np.int64))
    real = head.real(logits)[0]
    exact = real.max() + np.log(np.exp(real - real.max()).sum())
    assert logarithm(logits) == pytest.approx(exact, abs=ERROR)


def test_a_logit_that_is_alone_has_all_of_the_sum() -> None:
    for value in (-(2**31) + 1, -5, 0, 12_345, 2**31 - 1):
        logits = row(np.array([value]))
        assert logarithm(logits) == head.real(logits)[0, 0]


def test_a_row_of_zeros_counts_its_ids() -> None:
    assert logarithm(row(np.zeros(1000, np.int64), 0, 0 - 20)) == pytest.approx(math.log(1000), abs=1e-7)


def test_a_row_without_ids_has_no_sum() -> None:
    assert word(row(np.zeros(0, np.int64))) == 0


def test_the_largest_vocabulary_fits() -> None:
    """Give 2^20 equal logits just below the next octave, whose sum has the most bits."""
    e = 4095
    logits = row(np.full(1 << 20, e), 1 << 15, -12)
    logits = replace(logits, mantissa=np.array([22713]))  # rs(22713 * 47274, 15) is 32768: e is the logit * 2^15
    logits = replace(logits, exponent=np.array([-27]))
    left_out = word(logits) >> 27
    assert (word(logits) & (1 << 27) - 1) << left_out == octave_power(np.array([e]))[0] << 28
    assert logarithm(logits) - head.real(logits)[0, 0] == pytest.approx(20 * math.log(2), abs=1e-12)


def test_logits_without_a_sum_are_refused() -> None:
    logits = row(np.array([[3]])[0])
    with pytest.raises(UnsupportedError, match="soft-cap of 30 have no integer sum of exponentials"):
        head.relative_sum(np.array([1]), replace(logits, cap=30.0))
    with pytest.raises(UnsupportedError, match=r"unit is 19\.5.*, and a sum of exponentials needs one below 16"):
        head.relative_sum(np.array([1]), replace(logits, exponent=np.array([-11])))
