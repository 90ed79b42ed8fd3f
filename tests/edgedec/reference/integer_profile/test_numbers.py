"""Compare the arithmetic with Python's own integers and fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import EdgedecError
from edgedec.reference.integer_profile.numbers import (
    WidthCheck,
    bit_length,
    integer_root,
    mantissas,
    normalize16,
    round_shift,
    saturate,
    shifted,
    to_fixed,
)
from edgedec.reference.integer_profile.tables import exp2_negative, exp2_table, gate_positive, gate_table, rotary


def one(value: int) -> np.ndarray:
    return np.array([value], np.int64)


@given(st.integers(-(2**45), 2**45), st.integers(0, 47))
def test_rounding_shifts_equal_exact_fractions(x: int, shift: int) -> None:
    assert round_shift(one(x), shift)[0] == math.floor(Fraction(x, 1 << shift) + Fraction(1, 2) * (shift > 0))
    assert round_shift(one(x), one(shift))[0] == round_shift(one(x), shift)[0]


@pytest.mark.parametrize(("x", "shift", "expected"), [(5, 1, 3), (-5, 1, -2), (-6, 2, -1), (6, 2, 2), (7, 0, 7)])
def test_halves_are_rounded_up(x: int, shift: int, expected: int) -> None:
    assert round_shift(one(x), shift)[0] == expected


def test_saturation_is_symmetric() -> None:
    assert saturate(np.array([-200, -128, -127, 127, 128]), 8).tolist() == [-127, -127, -127, 127, 127]


@given(st.integers(1, 2**53 - 1))
def test_normalize_equals_its_definition(x: int) -> None:
    mantissa, e = (int(part[0]) for part in normalize16(one(x)))
    assert e == x.bit_length() == bit_length(one(x))[0]
    assert mantissa == (x >> (e - 16) if e > 16 else x << (16 - e))


@given(st.integers(0, 2**32 - 1))
def test_root_equals_the_integer_root(x: int) -> None:
    assert integer_root(one(x))[0] == math.isqrt(x)


def test_root_is_exact_next_to_squares() -> None:
    squares = np.arange(1, 1 << 16, dtype=np.int64) ** 2
    assert np.array_equal(integer_root(squares), np.arange(1, 1 << 16))
    assert np.array_equal(integer_root(squares - 1), np.arange(1, 1 << 16) - 1)


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=5), st.integers(8, 16))
def test_mantissas_are_within_one_unit(values: list[float], bits: int) -> None:
    actual = mantissas(np.array(values), bits)
    largest = int(np.abs(actual.values).max())
    assert largest < 1 << bits
    if any(values):
        assert largest >= 1 << (bits - 1) if max(map(abs, values)) > 1e-300 else True
        assert np.allclose(
            np.ldexp(actual.values.astype(float), actual.exponent), values, rtol=0, atol=2.0**actual.exponent
        )


def test_mantissas_carry_at_the_top_and_are_clamped_at_the_bottom() -> None:
    actual = mantissas(np.array([65535.7]))
    assert (actual.values.tolist(), actual.exponent) == ([32768], 1)
    assert mantissas(0.0).values.tolist() == [0]
    clamped = mantissas(np.array([2.0**-30]), least_exponent=-35)
    assert (clamped.values.tolist(), clamped.exponent) == ([32], -35)


def test_numbers_are_shifted_by_exponents_of_any_width() -> None:
    found = shifted(np.array([[3], [5]]), np.array([-1, 70]))
    assert found.tolist() == [[1.5, 3 * 2.0**70], [2.5, 5 * 2.0**70]]
    assert found.dtype == np.float64
    assert shifted(np.array([0.5]), -1).tolist() == [0.25]


def test_exponents_of_arrays_are_ints_of_the_compiler(project_root: Path) -> None:
    """NumPy's ldexp refuses int64 on a 32-bit processor, which only an emulated one would show."""
    folders = ("edgedec", "runtime", "hw", "sim", "boards", "quantize")
    sources = (path for folder in folders for path in (project_root / folder).rglob("*.py"))
    users = {path.name for path in sources if "np.ldexp(" in path.read_text("utf-8")}
    assert users == {"numbers.py", "portable_math.py"}


def test_to_fixed_rounds_half_up_and_saturates() -> None:
    assert to_fixed(np.array([0.5, -0.5, 1.49, 1e9, -1e9]), 1.0, 8).tolist() == [1, 0, 1, 127, -127]


def test_a_failed_check_names_the_value() -> None:
    check = WidthCheck(enabled=True)
    assert check.signed("x", one(-127), 8)[0] == -127
    with pytest.raises(EdgedecError, match=r"x does not fit s8: -128\.\.-128"):
        check.signed("x", one(-128), 8)
    with pytest.raises(EdgedecError, match=r"y does not fit u16: 65536\.\.65536"):
        check.unsigned("y", one(65536), 16)
    with pytest.raises(EdgedecError, match=r"y does not fit u16: -1\.\.-1"):
        check.unsigned("y", one(-1), 16)
    WidthCheck().signed("x", one(-128), 8)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_exp2_is_near_the_float_function() -> None:
    u = np.arange(4608)
    actual = exp2_negative(u)
    assert (actual[0], actual[256], actual[-1]) == (65535, 32768, 0)
    assert (np.diff(actual) <= 0).all()
    assert np.abs(actual - 65535 * 2.0 ** (-u / 256)).max() <= 0.75
    assert exp2_table().max() < 1 << 16
    assert actual[17 * 256 :].max() == 0


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_factor_of_a_gate_is_near_the_float_function(activation: str) -> None:
    x = np.arange(1 << 16)
    actual = gate_positive(x, activation)
    assert (actual[0], actual[-1]) == (32768, 65535)
    assert (np.diff(actual) >= 0).all()
    real = x / 4096
    exact = 1 / (1 + np.exp(-real))
    if activation == "gelu_tanh":
        real = x / 8192
        exact = 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (real + 0.044715 * real**3)))
    assert np.abs(actual - 65536 * exact).max() < 4
    value, step = gate_table(activation)
    assert value.shape == step.shape == (256,)
    assert value.max() < 1 << 16
    assert 0 <= step.min() <= step.max() < 1 << 11


def test_rotary_is_near_the_float_function() -> None:
    cos, sin = rotary(np.array([0, 1, 900], np.int32), (1.0, 0.01))
    assert cos[0].tolist() == [1 << 14] * 2
    assert sin[0].tolist() == [0, 0]
    assert sin[2, 1] == math.floor(2**14 * math.sin(9.0) + 0.5)
    assert np.abs(np.hypot(cos, sin) / 2**14 - 1).max() < 1e-4
