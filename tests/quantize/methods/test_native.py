"""Test native ternary, which is lossless or refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgedec.quantize.methods.native import (
    NotTernaryError,
    find_ternary,
    grouped_ternary,
    native_ternary_groups,
)

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
trit_arrays = arrays.arrays(
    np.int8, arrays.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.integers(-1, 1)
)
# magnitudes that are exact in none, some or all of the types, to which they are cast below
magnitudes = st.floats(2.0**-20, 2.0**14, width=16)


@pytest.mark.thorough
@given(trit_arrays, magnitudes, st.sampled_from(DTYPES))
def test_a_ternary_matrix_is_unchanged(trits: np.ndarray, magnitude: float, dtype: type) -> None:
    scale: np.ndarray = np.array(magnitude).astype(dtype)
    weight = trits.astype(dtype) * scale
    got_trits, got_scale, group_size = find_ternary(weight)
    assert group_size == 0
    assert got_trits.dtype == np.int8
    assert got_scale.dtype == np.float32
    assert np.array_equal(got_trits * got_scale, weight.astype(np.float32))
    assert np.array_equal(got_trits, trits)
    assert got_scale == ([np.float32(scale)] if trits.any() else [0])


def test_zeros_have_scale_zero_and_no_sign() -> None:
    trits, scale, group_size = find_ternary(np.array([[0.0, -0.0]], np.float32))
    assert (trits.tolist(), scale.tolist(), group_size) == ([[0, 0]], [0], 0)


def test_a_second_magnitude_one_bit_away_is_refused() -> None:
    weight = np.full((3000, 128), 0.5, np.float32)  # several pieces
    weight[2999, 99] = np.nextafter(np.float32(0.5), np.float32(1))
    message = r"blk\.0 is not ternary in groups of 32: row 2999 .* from column 96 on; .* --planes 2"
    with pytest.raises(NotTernaryError, match=message):
        find_ternary(weight, "blk.0")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    for weight in ([[0, bad]], [[1, 2, *[0] * 62, bad]]):
        with pytest.raises(FloatingPointError, match="tensor holds values that are not finite"):
            find_ternary(np.array(weight, np.float32))


@pytest.mark.thorough
@given(st.data(), st.sampled_from(DTYPES), st.sampled_from((32, 64, 128)), st.sampled_from((20, 40, 128, 256, 300)))
def test_the_widest_groups_that_hold_are_found(data: st.DataObject, dtype: type, group_size: int, columns: int) -> None:
    """Compare with a search over the sizes from the widest one downwards."""
    few = st.sampled_from([0.25, 0.5, 3.0]) if data.draw(st.booleans()) else magnitudes
    trits = data.draw(arrays.arrays(np.int8, (2, columns), elements=st.integers(-1, 1)))
    scales: np.ndarray = data.draw(arrays.arrays(np.float32, (2, -(-columns // group_size)), elements=few)).astype(
        dtype
    )
    weight = trits.astype(dtype) * np.repeat(scales, group_size, axis=1)[:, :columns]

    def holds(size: int) -> bool:
        return all(
            len(set(np.abs(row[start : start + size]).tolist()) - {0.0}) <= 1
            for row in weight.astype(np.float32)
            for start in range(0, columns, size)
        )

    found = find_ternary(weight)
    wide = [size for size in (128, 64, 32) if size < 2 * columns and holds(size)]
    whole = len(set(np.abs(weight.astype(np.float32)).ravel().tolist()) - {0.0}) <= 1
    assert found.group_size == (0 if whole else wide[0])
    spread = np.repeat(found.scales, found.group_size, axis=1)[:, :columns] if found.group_size else found.scales
    assert np.array_equal(found.trits * spread, weight.astype(np.float32))
    blocks = -(-columns // group_size)
    stored = np.abs(scales.astype(np.float32)) * data.draw(
        arrays.arrays(np.int8, (2, blocks), elements=st.sampled_from((-1, 1)))
    )
    signs = np.sign(np.repeat(stored, group_size, axis=1)[:, :columns]).astype(np.int8)
    again = grouped_ternary(trits * signs, stored.astype(np.float32), group_size)
    assert again.group_size == found.group_size
    assert np.array_equal(again.scales, found.scales)
    assert np.array_equal(again.trits, found.trits)


@pytest.mark.thorough
@given(trit_arrays, st.data(), st.sampled_from(DTYPES), st.integers(1, 7))
def test_a_matrix_in_groups_is_unchanged(trits: np.ndarray, data: st.DataObject, dtype: type, group_size: int) -> None:
    groups = -(-trits.shape[1] // group_size)
    factors = data.draw(arrays.arrays(np.float32, (len(trits), groups), elements=magnitudes))
    scales: np.ndarray = factors.astype(dtype)
    column_scales = np.repeat(scales, group_size, axis=1)[:, : trits.shape[1]]
    weight = trits.astype(dtype) * column_scales
    got_trits, got_scales = native_ternary_groups(weight, group_size)
    assert got_trits.dtype == np.int8
    assert got_scales.dtype == np.float32
    assert np.array_equal(got_trits, trits)
    nonzero = np.add.reduceat(np.abs(trits), np.arange(0, trits.shape[1], group_size), axis=1) > 0
    assert np.array_equal(got_scales, np.where(nonzero, scales.astype(np.float32), 0))


def test_groups_of_zeros_have_scale_zero() -> None:
    trits, scales = native_ternary_groups(np.array([[0.0, -0.0, 2.0], [-3.0, 0.0, 0.0]], np.float32), 2)
    assert trits.tolist() == [[0, 0, 1], [-1, 0, 0]]
    assert scales.tolist() == [[0, 2], [3, 0]]


def test_a_second_magnitude_within_a_group_is_refused() -> None:
    weight = np.tile(np.array([0.5, -0.5, 0.25, 0.25, 0.0, 1.0], np.float32), (4, 1))
    native_ternary_groups(weight, 2)
    weight[2, 3] = np.nextafter(np.float32(0.25), np.float32(1))
    message = (
        r"blk\.0 is not ternary in groups of 2: row 2 has several nonzero magnitudes from column 2 on; .* --planes 2"
    )
    with pytest.raises(NotTernaryError, match=message):
        native_ternary_groups(weight, 2, "blk.0")
    with pytest.raises(FloatingPointError, match="blk holds values that are not finite"):
        native_ternary_groups(np.array([[0, np.nan]], np.float32), 1, "blk")
