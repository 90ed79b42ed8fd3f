"""Compare floats as integers with NumPy's own arithmetic, over all bit patterns of two bytes and random ones of four."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.quantize.methods import float_bits
from edgedec.quantize.methods.float_bits import (
    absolute_sum,
    all_finite,
    largest_magnitude,
    least_magnitude,
    nonzeros,
    pieces,
    signs_from,
    value_of,
)
from edgedec.quantize.methods.native import absmean_ternary

DTYPES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32))


def every(dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return every finite value of a two-byte type, or as many of float32, drawn from all exponents."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    values: NDArray[Any] = bits.view(dtype) if dtype.itemsize == 2 else (bits.astype(np.uint32) * 65521 + 7).view(dtype)
    return values[np.isfinite(values.astype(np.float32))].reshape(-1, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_value_is_classified(dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_bits, "_VALUES_AT_ONCE", 1000)  # pieces whose last is shorter
    values = every(dtype)
    exact = np.abs(values.astype(np.float64))
    assert all_finite(values)
    assert value_of(dtype, largest_magnitude(values)) == exact.max()
    assert nonzeros(values) == np.count_nonzero(exact)
    if dtype == np.float16:
        assert absolute_sum(values) == exact.sum()
    else:
        assert absolute_sum(values / dtype.type(4)) == pytest.approx(
            np.abs((values / dtype.type(4)).astype(float)).sum()
        )
    for bound in (1e-30, 6e-8, 0.37, 12.5, 60000.0):
        smallest = least_magnitude(dtype, lambda value, bound=bound: bool(value >= np.float32(bound)))  # type: ignore[misc]
        expected = np.where(exact >= np.float32(bound), np.sign(values.astype(np.float64)), 0)
        np.testing.assert_array_equal(signs_from(values, smallest), expected)
    assert least_magnitude(dtype, lambda value: False) is None
    assert not signs_from(values, None).any()
    assert least_magnitude(dtype, lambda value: True) == 0
    np.testing.assert_array_equal(signs_from(values, 0), np.sign(values.astype(np.float64)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(dtype: np.dtype[Any], value: float) -> None:
    values = np.ones((3, 4), dtype)
    values[2, 1] = value
    assert not all_finite(values)
    with pytest.raises(FloatingPointError, match="blk holds values that are not finite"):
        absmean_ternary(values, "blk")


def test_pieces_cover_all_rows_once() -> None:
    for rows, columns in ((1, 1), (7, 100_000), (1000, 1 << 18), (5, 1 << 20), (300_000, 2)):
        slices = list(pieces(rows, columns))
        assert [part.start for part in slices] == [0, *[part.stop for part in slices[:-1]]]
        assert slices[-1].stop == rows
        assert all((part.stop - part.start) * columns <= 1 << 18 or part.stop - part.start == 1 for part in slices)


def plain_absmean(weight: NDArray[Any]) -> tuple[NDArray[Any], np.float32]:
    """Compute it as transformers does, but with a float64 sum."""
    mean = np.float32(np.abs(weight.astype(np.float64)).sum() / weight.size)
    inverse = np.float32(1) / np.maximum(mean, np.float32(1e-5))
    with np.errstate(over="ignore"):
        trits = np.clip(np.rint(weight.astype(np.float32) * inverse), -1, 1)
    return trits, np.float32((np.float32(1) / inverse).astype(weight.dtype))


@pytest.mark.thorough
@given(st.integers(0, 1 << 32), st.sampled_from(DTYPES), st.sampled_from([1e-6, 1e-4, 0.02, 1.0, 300.0]))
def test_absmean_equals_the_plain_formula(seed: int, dtype: np.dtype[Any], size: float) -> None:
    rng = np.random.default_rng(seed)
    weight = (rng.standard_normal((rng.integers(1, 9), rng.integers(1, 40))) * size).astype(dtype)
    middle = np.abs(weight.astype(np.float64)).mean() / 2
    weight[0, 0] = middle  # the value of the type that is nearest to the border
    trits, scale = absmean_ternary(weight)
    expected, expected_scale = plain_absmean(weight)
    np.testing.assert_array_equal(trits, expected)
    assert trits.dtype == np.int8
    assert scale == (expected_scale if expected.any() else 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_absmean_of_zeros_and_of_the_largest_value_is_finite(dtype: np.dtype[Any]) -> None:
    trits, scale = absmean_ternary(np.zeros((2, 3), dtype))
    assert not trits.any()
    assert scale == 0
    largest = np.full((2, 2), value_of(dtype, largest_magnitude(every(dtype))), dtype)
    trits, scale = absmean_ternary(largest)
    assert trits.all()
    assert scale == pytest.approx(float(largest[0, 0]), rel=1e-2)
