"""Test int8 per output channel: the bound on the error, and rows and numbers at the limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgedec.quantize.methods.int8 import quantize_int8

matrices = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=2, max_dims=2, max_side=8),
    elements=st.floats(-(2.0**120), 2.0**120, width=32),
)


@pytest.mark.thorough
@given(matrices)
def test_every_element_is_within_half_a_scale(weight: np.ndarray) -> None:
    codes, scale = quantize_int8(weight)
    assert codes.dtype == np.int8
    assert scale.dtype == np.float32
    assert np.abs(codes.astype(int)).max() <= 127
    error = np.abs(weight.astype(np.float64) - scale.astype(np.float64)[:, None] * codes)
    assert np.all(error <= scale.astype(np.float64)[:, None] * (0.5 + 1e-5))


@pytest.mark.thorough
@given(matrices)
def test_the_largest_magnitude_of_a_normal_row_has_code_127(weight: np.ndarray) -> None:
    codes, _ = quantize_int8(weight)
    for row, largest in zip(codes, np.abs(weight).max(axis=1), strict=True):
        if largest >= 1e-30:
            assert np.abs(row.astype(int)).max() == 127


def test_codes_times_powers_of_two_are_unchanged() -> None:
    codes = np.array([[127, -3, 0], [-127, 64, 1]], np.int8)
    scale = np.array([2.0**-7, 8.0], np.float32)
    got_codes, got_scale = quantize_int8(codes * scale[:, None])
    assert np.array_equal(got_codes, codes)
    assert np.array_equal(got_scale, scale)


def test_zero_rows_have_scale_zero() -> None:
    codes, scale = quantize_int8(np.array([[0, 0], [1, -1]], np.float32))
    assert scale[0] == 0
    assert codes.tolist() == [[0, 0], [127, -127]]


def test_subnormal_rows_keep_the_bound() -> None:
    tiny = np.float32(2.0**-149)  # the smallest float32: 1/127 of 63 of them rounds to 0, of 190 to one
    weight = np.arange(1, 400, dtype=np.float32)[:, None] * np.array([[1, -1, 0.5]], np.float32) * tiny
    codes, scale = quantize_int8(weight)
    assert (scale > 0).all()
    wide = scale.astype(np.float64)[:, None]
    assert np.all(np.abs(weight - wide * codes) <= wide / 2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="weight must be finite"):
        quantize_int8(np.array([[1, value]], np.float32))


@pytest.mark.parametrize("shape", [(3,), (2, 0), (1, 2, 3)])
def test_an_array_that_is_not_a_matrix_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be a matrix"):
        quantize_int8(np.zeros(shape, np.float32))
