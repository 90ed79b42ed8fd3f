"""Test the int4 method: exactness, limits, and the gain by statistics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.quantize.methods.grid import Grid
from edgedec.quantize.methods.int4 import int4_parts
from edgedec.quantize.methods.planes import ScaleRangeError, Statistics
from edgedec.schemes import Int4Scheme
from tests.quantize.methods.test_planes import gaussian, layer_inputs

SCHEME = Int4Scheme()


def rounded(weight: np.ndarray, statistics: Statistics | None = None) -> np.ndarray:
    return SCHEME.open("w", weight.shape, int4_parts(weight, statistics)).dense()


@pytest.mark.thorough
@settings(max_examples=30)
@given(
    outputs=st.integers(1, 5),
    inputs=st.integers(1, 100),
    size=st.sampled_from([1e-2, 1.0, 1e4]),
    informed=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_shape_and_size_gives_a_weight_that_is_near(
    outputs: int, inputs: int, size: float, informed: bool, seed: int
) -> None:
    weight = gaussian(outputs, inputs, seed) * np.float32(size)
    x = layer_inputs(50, inputs, seed) if inputs >= 4 else np.ones((50, inputs))
    statistics = Statistics(gram=(x.T @ x).astype(np.float64)) if informed else None
    parts = int4_parts(weight, statistics)
    for name, part in SCHEME.parts(weight.shape).items():
        assert (parts[name].dtype, parts[name].shape) == (part.dtype, part.shape)
    dense = SCHEME.open("w", weight.shape, parts).dense()
    if not informed:
        assert np.abs(dense - weight).max() <= 0.2 * np.abs(weight).max() + 1e-7


def test_weights_of_the_form_are_found_again() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(-8, 8, (30, 64)).astype(np.float32)
    codes[:, ::32], codes[:, 1::32] = -8, 7  # every group has both ends, so that its scale and sign are determined
    scales = (rng.uniform(0.5, 2, (30, 2)) * rng.choice([-1, 1], (30, 2))).astype(np.float16)
    weight = codes * np.repeat(scales.astype(np.float32), 32, axis=1)
    parts = int4_parts(weight)
    assert np.array_equal(parts["scale"], scales)
    assert np.array_equal(SCHEME.unpack(parts["codes"]), codes + 8)


def test_a_fitted_scale_is_better_than_the_largest_magnitude() -> None:
    """Compare with Q4_0 as llama.cpp writes it: the value of the largest magnitude has the code -8."""
    weight = gaussian(200, 128, 1)
    groups = weight.reshape(200, 4, 32)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=2)[..., None], axis=2)
    scale = (largest / -8).astype(np.float16).astype(np.float32)
    plain = np.clip(np.rint(groups / scale), -8, 7) * scale
    error, plain_error = ((rounded(weight) - weight) ** 2).sum(), ((plain - groups) ** 2).sum()
    assert error < 0.9 * plain_error


def test_statistics_reduce_the_error_of_the_output() -> None:
    weight, x = gaussian(40, 128, 3), layer_inputs(600, 128, 4)
    errors = [
        float(((x @ (weight - rounded(weight, statistics)).T) ** 2).sum())
        for statistics in (None, Statistics(gram=(x.T @ x).astype(np.float64)))
    ]
    assert errors[1] < 0.5 * errors[0]


def test_the_nearest_level_is_chosen_within_the_range() -> None:
    levels = Grid(-8, 7).levels(np.array([[0.5], [-0.5], [0.0]]))
    x = np.array([[10.0, 10.0, 10.0], [-10.0, -10.0, 1.0], [0.6, 0.6, 0.0]])
    assert np.array_equal(levels.codes(x)[..., 0].T, [[7, -8, 0], [-8, 7, 0], [1, -1, 0]])
    assert np.array_equal(levels.nearest(x), [[3.5, 4.0, 0.0], [-4.0, -3.5, 0.0], [0.5, 0.5, 0.0]])


@pytest.mark.thorough(sample=15)
@pytest.mark.parametrize("informed", [False, True])
@pytest.mark.parametrize("power", range(-60, 61, 5))
def test_a_power_of_two_moves_to_the_scales_or_is_refused(power: int, informed: bool) -> None:
    weight, x = gaussian(6, 100, 0), layer_inputs(50, 100, 0)
    statistics = Statistics(gram=(x.T @ x).astype(np.float64)) if informed else None
    usual = int4_parts(weight, statistics)
    exact = np.ldexp(usual["scale"].astype(np.float64), power)
    magnitudes = np.abs(exact[exact != 0])
    try:
        parts = int4_parts(np.ldexp(weight, power), statistics)
    except ScaleRangeError:
        assert magnitudes.min() < 2**-14 or magnitudes.max() > 65504
    else:
        assert np.array_equal(parts["codes"], usual["codes"])
        assert np.array_equal(parts["scale"].astype(np.float64), exact)
        assert magnitudes.min() >= 2**-14


@pytest.mark.parametrize(("size", "groups"), [(1e6, 2), (1e-4, 2), (1e-30, 2)])
def test_the_scales_that_float16_cannot_hold_are_counted(size: float, groups: int) -> None:
    weight = np.ones((3, 64), np.float32)
    weight[1] = np.float32(size)
    with pytest.raises(ScaleRangeError, match=rf"{groups} of its 6 scales would be outside 6.1e-05 to 65504"):
        int4_parts(weight)


def test_groups_of_zeros_have_the_scale_0() -> None:
    weight = np.zeros((2, 64), np.float32)
    weight[0, 32:] = 1
    assert (int4_parts(weight)["scale"] != 0).tolist() == [[False, True], [False, False]]
