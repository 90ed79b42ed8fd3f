"""Compare level sets with brute force, and test the plain fit of scales."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.quantize.methods.levels import Levels, fit_scales, ordered, scale_step


def every_sum(scales: np.ndarray) -> np.ndarray:
    """Return all sums of plane scales with trits: [rows, 3^K]."""
    signs = np.array(list(product((-1, 0, 1), repeat=scales.shape[1])), float)
    return np.asarray(scales @ signs.T)


def fit_error(x: np.ndarray, planes: int) -> np.ndarray:
    error: np.ndarray = ((x - Levels(fit_scales(x, planes)).nearest(x)) ** 2).sum(axis=0)
    return error


@pytest.mark.thorough
@given(st.integers(1, 3), st.integers(0, 2**32 - 1), st.sampled_from([1e-30, 1.0, 1e30]))
def test_nearest_is_the_best_of_all_sums(planes: int, seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    scales = ordered(rng.standard_normal((5, planes)) * size)
    scales[0, -1] = 0  # sums that coincide
    scales[1] = scales[1, 0]
    x = rng.standard_normal((7, 5)) * 2 * size
    levels = Levels(scales)
    nearest = levels.nearest(x)
    distances = np.abs(x[:, :, None] - every_sum(scales)).min(axis=2)
    np.testing.assert_allclose(np.abs(x - nearest), distances, rtol=1e-12, atol=1e-12 * size)
    assert np.array_equal(levels.nearest(x[3]), nearest[3])  # one column alone gives the same as among others


@pytest.mark.thorough
@given(st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_trits_add_up_to_the_nearest_level(planes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scales = ordered(rng.standard_normal((4, planes)))
    x = rng.standard_normal((6, 4)) * 2
    trits = Levels(scales).trits(x)
    assert set(np.unique(trits)) <= {-1, 0, 1}
    np.testing.assert_allclose((trits @ scales[:, :, None])[:, :, 0].T, Levels(scales).nearest(x), atol=1e-14)


def test_ties_go_to_the_smaller_magnitude() -> None:
    levels = Levels(np.array([[2.0]]))
    assert levels.nearest(np.array([[1.0], [-1.0], [1.001]]))[:, 0].tolist() == [0, 0, 2]


@pytest.mark.parametrize("planes", [1, 2, 3])
def test_scale_step_is_least_squares_under_the_metric(planes: int) -> None:
    rng = np.random.default_rng(planes)
    trits = rng.integers(-1, 2, (3, 12, planes)).astype(float)
    x, scales = rng.standard_normal((12, 3)), rng.standard_normal((3, planes))
    root = np.eye(12) + 0.3 * rng.standard_normal((12, 12))
    error = x - (trits @ scales[:, :, None])[:, :, 0].T
    fitted = scales + scale_step(trits, root @ root.T @ error, root @ root.T)
    for row in range(3):
        exact = np.linalg.lstsq(root.T @ trits[row], root.T @ x[:, row], rcond=None)[0]
        np.testing.assert_allclose(fitted[row], exact, rtol=1e-6, atol=1e-7)


def test_scale_step_of_unused_and_equal_planes_is_finite_and_no_worse() -> None:
    x = np.array([[1.0, 1.0], [-2.0, -2.0]])
    trits = np.array([[[1, 0], [-1, 0]], [[1, 1], [-1, -1]]], float)  # plane 2 unused; plane 2 equal to plane 1
    step = scale_step(trits, x)
    residual = x - (trits @ step[:, :, None])[:, :, 0].T
    np.testing.assert_allclose((residual**2).sum(axis=0), 0.5, rtol=1e-6)


def test_one_plane_is_optimal() -> None:
    x = np.random.default_rng(0).standard_normal((9, 40))
    best = np.full(40, np.inf)
    for signs in product((0, 1), repeat=9):  # every support, for which the optimal scale is the mean magnitude
        support = np.array(signs)[:, None] * np.sign(x)
        scale = (support * x).sum(axis=0) / max(1, sum(signs))
        best = np.minimum(best, ((x - support * scale) ** 2).sum(axis=0))
    np.testing.assert_allclose(fit_error(x, 1), best, rtol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize(("planes", "allowed"), [(2, 1.02), (3, 1.0)])
def test_starts_come_close_to_many_random_starts(planes: int, allowed: float) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((64, 64))
    best = np.full(64, np.inf)
    for _ in range(60):
        scales = ordered(rng.uniform(0.1, 1.5, (64, planes)))
        for _ in range(8):
            levels = Levels(scales)
            trits = levels.trits(x).astype(float)
            scales = ordered(scales + scale_step(trits, x - levels.nearest(x)))
        best = np.minimum(best, ((x - Levels(scales).nearest(x)) ** 2).sum(axis=0))
    assert fit_error(x, planes).sum() <= allowed * best.sum()


@pytest.mark.parametrize("planes", [1, 2, 3])
def test_fitted_scales_are_in_order(planes: int) -> None:
    x = np.random.default_rng(4).standard_t(3, (16, 300))
    scales = fit_scales(x, planes)
    assert np.array_equal(scales, ordered(scales))


@pytest.mark.parametrize("kind", ["gauss", "heavy", "uniform", "two values"])
def test_more_planes_and_more_steps_are_never_worse(kind: str) -> None:
    rng = np.random.default_rng(2)
    x = {
        "gauss": rng.standard_normal((32, 50)),
        "heavy": rng.standard_t(2, (32, 50)),
        "uniform": rng.uniform(-1, 1, (32, 50)),
        "two values": rng.choice([-0.3, 1.0], (32, 50)),
    }[kind]
    errors = [fit_error(x, planes) for planes in (1, 2, 3)]
    assert np.all(errors[1] <= errors[0] * (1 + 1e-9) + 1e-18)
    assert np.all(errors[2] <= errors[1] * (1 + 1e-9) + 1e-18)
    steps = [((x - Levels(fit_scales(x, 3, steps=n)).nearest(x)) ** 2).sum(axis=0) for n in (0, 1, 2, 4, 100)]
    for fewer, longer in pairwise(steps):
        assert np.all(longer <= fewer * (1 + 1e-9) + 1e-18)
