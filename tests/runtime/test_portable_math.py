from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.sampling import portable_math

ULPS = 2  # units in the last place of the exact result, as the module promises


def _ulps(value: float, exact: float) -> float:
    return abs(value - exact) / math.ulp(exact)


@given(st.floats(portable_math.LEAST_EXPONENT, 0))
def test_exp_is_within_two_units_in_the_last_place(x: float) -> None:
    assert _ulps(portable_math.exp(np.array([x])).item(), math.exp(x)) <= ULPS


@given(st.floats(2.0**-1022, 2.0**1023))
def test_log_is_within_two_units_in_the_last_place(x: float) -> None:
    value = portable_math.log(np.array([x])).item()
    assert value == 0 if x == 1 else _ulps(value, math.log(x)) <= ULPS


@pytest.mark.parametrize(("x", "result"), [(0.0, 1.0), (-0.0, 1.0), (-math.inf, 0.0), (-69.0001, 0.0), (-1e300, 0.0)])
def test_exp_at_its_ends(x: float, result: float) -> None:
    assert portable_math.exp(np.array([x])).item() == result


def test_exp_leaves_no_subnormal_numbers() -> None:
    least = portable_math.exp(np.array([portable_math.LEAST_EXPONENT])).item()
    assert np.float32(least) >= np.finfo(np.float32).tiny


def test_the_sum_is_taken_from_the_first_to_the_last() -> None:
    values = np.random.default_rng(0).random(1000) * 10.0 ** np.random.default_rng(1).integers(-8, 8, 1000)
    expected = 0.0
    for value in values.tolist():
        expected += value
    assert portable_math.total(values) == expected
    assert expected != math.fsum(values), "the order must matter for these values, or the test says nothing"


def test_the_bits_are_those_of_the_first_implementation() -> None:
    """A processor on which another instruction was chosen, a contraction for example, gives another hash."""
    x = np.linspace(portable_math.LEAST_EXPONENT, 0, 100_001)
    bits = portable_math.exp(x).tobytes() + portable_math.log(np.linspace(1e-9, 4, 100_001)).tobytes()
    assert hashlib.sha256(bits).hexdigest() == EXPECTED


EXPECTED = "3f574b24966048d1447acfcfe4232e3edfd004a1554f8fcd615b50a0866b0e24"


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 16, 33])
def test_a_value_does_not_depend_on_its_neighbours(length: int) -> None:
    """The ends of an array take another code path than its middle in vectorized code."""
    x = -np.random.default_rng(length).random(length) * 60
    assert portable_math.exp(x).tolist() == [portable_math.exp(x[at : at + 1]).item() for at in range(length)]
    assert portable_math.log(-x).tolist() == [portable_math.log(-x[at : at + 1]).item() for at in range(length)]
