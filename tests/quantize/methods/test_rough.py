"""Test the rounding of a matrix to small integers with a scale for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.quantize.methods.planes import Statistics
from edgedec.quantize.methods.rough import quantize_rows

RNG = np.random.default_rng(5)
INPUTS = RNG.normal(size=(400, 150)) * np.exp(RNG.normal(0, 1.5, 150))  # some columns are much larger than others
WEIGHT = RNG.normal(size=(30, 150)).astype(np.float32)
GRAM = INPUTS.T @ INPUTS


def error(codes: NDArray[np.int8], scale: NDArray[np.float32], weight: NDArray[Any] = WEIGHT) -> float:
    """Return the squared error of the output as a share of its energy."""
    wrong = INPUTS @ (codes * scale[:, None] - weight).T
    return float(np.square(wrong).sum() / np.square(INPUTS @ weight.T).sum())


@pytest.mark.parametrize("most", [1, 4, 13])
def test_outputs_are_nearer_than_with_the_nearest_integers(most: int) -> None:
    codes, scale = quantize_rows(WEIGHT, most, Statistics(gram=GRAM))
    assert codes.dtype == np.int8
    assert scale.dtype == np.float32
    assert int(np.abs(codes).max()) == most
    plain = quantize_rows(WEIGHT, most, Statistics(gram=np.eye(150)))
    assert error(codes, scale) < 0.8 * error(*plain)


def test_the_scale_is_that_of_least_squares() -> None:
    codes, scale = quantize_rows(WEIGHT, 4, Statistics(gram=GRAM))
    best = error(codes, scale)
    for factor in (0.98, 1.02):
        assert error(codes, scale * np.float32(factor)) > best


def test_what_is_on_the_levels_is_kept() -> None:
    levels = RNG.integers(-4, 5, (2000, 150)).astype(np.int8)  # two threads' rows
    levels[:, 0] = 4
    scales = RNG.uniform(0.01, 3, 2000).astype(np.float32)
    codes, scale = quantize_rows(levels * scales[:, None], 4, Statistics(gram=GRAM))
    assert np.array_equal(codes, levels)
    np.testing.assert_allclose(scale, scales, rtol=1e-5)


def test_rows_and_inputs_of_zeros_have_scales_of_zeros() -> None:
    weight = WEIGHT.copy()
    weight[3] = 0
    codes, scale = quantize_rows(weight, 4, Statistics(gram=GRAM))
    assert not codes[3].any()
    assert scale[3] == 0
    assert (scale[np.arange(30) != 3] > 0).all()
    nothing = quantize_rows(weight, 4, Statistics(gram=np.zeros((150, 150))))
    assert error(*nothing, weight) < 0.1
