"""Test trit-planes as a whole: shapes, exactness, limits, and the gain by statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.quantize.methods import planes as module
from edgedec.quantize.methods.levels import FreePlanes
from edgedec.quantize.methods.planes import (
    Statistics,
    balanced_trits,
    quantize_planes,
    quantize_tied,
    target_weight,
)
from edgedec.schemes import TernaryWeight, fold


def dense(trits: np.ndarray, scales: np.ndarray, group_size: int) -> np.ndarray:
    return TernaryWeight(trits=trits, scale=scales, group_size=group_size).dense()


def gaussian(outputs: int, inputs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32)


def layer_inputs(rows: int, inputs: int, seed: int = 0) -> np.ndarray:
    """Return inputs that move together in a few directions, one of them much stronger, as in a trained network."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((rows, inputs // 4)) @ rng.standard_normal((inputs // 4, inputs))
    mixed[:, 0] *= 10
    noisy: np.ndarray = mixed + 0.3 * rng.standard_normal((rows, inputs))
    return noisy


def output_error(weight: np.ndarray, x: np.ndarray, planes: int, group_size: int, statistics: Any) -> float:
    approximation = dense(*quantize_planes(weight, planes, group_size, statistics), group_size)
    return float(((x @ (weight - approximation).T) ** 2).sum() / ((x @ weight.T) ** 2).sum())


def check_form(trits: np.ndarray, scales: np.ndarray, shape: tuple[int, int], planes: int, groups: int) -> None:
    assert trits.dtype == np.int8
    assert trits.shape == (planes, *shape)
    assert trits.min() >= -1
    assert trits.max() <= 1
    assert scales.dtype == np.float32
    assert scales.shape == (planes, shape[0], groups)
    assert np.isfinite(scales).all()
    assert (scales >= 0).all()


@pytest.mark.thorough
@settings(max_examples=40)
@given(
    outputs=st.integers(1, 5),
    inputs=st.integers(1, 70),
    planes=st.integers(1, 3),
    group_size=st.sampled_from([1, 7, 32, 64, 128]),
    informed=st.booleans(),
    size=st.sampled_from([1e-30, 1e-3, 1e30]),
)
def test_every_shape_and_size_gives_well_formed_planes(
    outputs: int, inputs: int, planes: int, group_size: int, informed: bool, size: float
) -> None:
    weight = (gaussian(outputs, inputs) * size).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((2 * inputs, inputs))
    statistics = Statistics(gram=x.T @ x, cross=x.T @ x) if informed else None
    trits, scales = quantize_planes(weight, planes, group_size, statistics)
    groups = -(-inputs // group_size)
    check_form(trits, scales, (outputs, inputs), planes, groups)
    approximation = dense(trits, scales, group_size).astype(np.float64)
    # One plane leaves at most about half of the energy of any vector this short; x is white, so statistics cost little.
    assert ((approximation - weight) ** 2).sum() <= 0.51 * (weight.astype(np.float64) ** 2).sum()


@pytest.mark.parametrize("informed", [False, True])
def test_more_planes_are_better(informed: bool) -> None:
    weight, x = gaussian(40, 96), layer_inputs(500, 96)
    statistics = Statistics(gram=x.T @ x) if informed else None
    measure = x if informed else np.eye(96)
    errors = [output_error(weight, measure, planes, 32, statistics) for planes in (1, 2, 3)]
    assert errors[1] < 0.3 * errors[0]
    assert errors[2] < 0.3 * errors[1]


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("informed", [False, True])
@pytest.mark.parametrize("planes", [1, 2, 3])
def test_sums_of_well_separated_planes_are_exact(planes: int, informed: bool) -> None:
    rng = np.random.default_rng(planes)
    trits = rng.integers(-1, 2, (planes, 20, 128)).astype(np.int8)
    scales = (rng.uniform(0.98, 1.02, (planes, 20, 2)) / 3.0 ** np.arange(planes)[:, None, None]).astype(np.float32)
    weight = dense(trits, scales, 64)
    x = layer_inputs(500, 128)
    got_trits, got_scales = quantize_planes(weight, planes, 64, Statistics(gram=x.T @ x) if informed else None)
    np.testing.assert_allclose(got_scales, scales, rtol=1e-6)
    assert np.array_equal(got_trits, trits)


def test_a_ternary_matrix_leaves_further_planes_empty() -> None:
    weight = np.random.default_rng(0).integers(-1, 2, (6, 64)).astype(np.float32) * np.float32(0.37)
    trits, scales = quantize_planes(weight, 3, 64)
    assert np.array_equal(dense(trits, scales, 64), weight)
    assert not trits[1:].any()
    assert not scales[1:].any()


@pytest.mark.parametrize("informed", [False, True])
def test_zero_and_constant_rows(informed: bool) -> None:
    weight = np.concatenate([np.zeros((1, 40)), np.full((1, 40), -0.7), np.eye(40)[:1]]).astype(np.float32)
    x = layer_inputs(200, 40)
    trits, scales = quantize_planes(weight, 2, 32, Statistics(gram=x.T @ x) if informed else None)
    np.testing.assert_allclose(dense(trits, scales, 32), weight, rtol=1e-6)
    assert not trits[:, 0].any()
    assert not scales[:, 0].any()


def test_scales_and_trits_vanish_together() -> None:
    unused = np.array([[[2.0, 0.5]], [[1.0, 0.0]]])  # [groups, rows, planes]: too large for x, or nothing
    trits, scales = module._pack(
        np.array([[0.5], [-0.1], [1.0], [0.4]]), unused, 2, FreePlanes(2), np.dtype(np.float32)
    )
    assert scales.tolist() == [[[0, 1]], [[0.5, 0]]]
    assert trits.tolist() == [[[0, 0, 1, 0]], [[1, 0, 0, 0]]]
    weight, x = gaussian(30, 70), layer_inputs(300, 70)
    weight[:5, ::3] = 0
    weight[5:10] = np.sign(weight[5:10])
    for statistics in (None, Statistics(gram=x.T @ x)):
        trits, scales = quantize_planes(weight, 3, 32, statistics)
        for group, start in enumerate(range(0, 70, 32)):
            nonzero = trits[:, :, start : start + 32].any(axis=2)
            assert np.array_equal(nonzero, scales[:, :, group] > 0)


def test_rows_do_not_depend_on_how_many_are_quantized_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = gaussian(23, 64), layer_inputs(300, 64)
    for statistics in (None, Statistics(gram=x.T @ x)):
        whole = quantize_planes(weight, 2, 32, statistics)
        monkeypatch.setattr(module, "_ROWS_AT_A_TIME", 5)
        parts = quantize_planes(weight, 2, 32, statistics)
        monkeypatch.undo()
        a, b = dense(*whole, 32), dense(*parts, 32)
        # Sums over a chunk end refinement, so a row may get one sweep more or less.
        assert np.mean((a - b) ** 2) <= (0.01 if statistics else 1e-12) * np.mean(weight**2)


def test_the_same_input_gives_the_same_bytes() -> None:
    weight, x = gaussian(20, 100), layer_inputs(300, 100)
    statistics = Statistics(gram=x.T @ x, cross=x.T @ x, drift=gaussian(20, 300) @ x)
    first, second = (quantize_planes(weight.copy(), 2, 64, statistics) for _ in range(2))
    assert first[0].tobytes() == second[0].tobytes()
    assert first[1].tobytes() == second[1].tobytes()


def test_arguments_are_unchanged() -> None:
    weight, x = gaussian(8, 40), layer_inputs(100, 40)
    gram = x.T @ x
    weight.flags.writeable = gram.flags.writeable = False
    quantize_planes(weight, 2, 32, Statistics(gram=gram, cross=gram, drift=np.zeros((8, 40))))


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("planes", [1, 2, 3])
def test_statistics_lower_the_output_error_on_unseen_inputs(planes: int) -> None:
    weight, x = gaussian(60, 128), layer_inputs(3000, 128)
    known, fresh = x[:2000], x[2000:]
    blind = output_error(weight, fresh, planes, 64, None)
    guided = output_error(weight, fresh, planes, 64, Statistics(gram=known.T @ known))
    assert guided < 0.5 * blind


def test_with_cross_and_drift_the_target_is_the_float_model_s_output() -> None:
    weight, exact = gaussian(10, 24).astype(np.float64), layer_inputs(500, 24)
    rng = np.random.default_rng(3)
    rough = exact @ (np.eye(24) + 0.2 * rng.standard_normal((24, 24))) + 0.1 * rng.standard_normal((500, 24))
    drift = rough @ rng.standard_normal((24, 10))  # part of the residual stream
    statistics = Statistics(gram=rough.T @ rough, cross=exact.T @ rough, drift=drift.T @ rough)
    target = target_weight(weight.astype(np.float32), statistics)
    expected = exact @ weight.T + drift
    ridge = np.sqrt(0.1 * np.trace(statistics.gram) / 24)
    best = np.linalg.lstsq(
        np.concatenate([rough, ridge * np.eye(24)]), np.concatenate([expected, ridge * weight.T]), rcond=None
    )[0].T
    np.testing.assert_allclose(target, best, rtol=1e-4, atol=1e-5)
    errors = [((rough @ w.T - expected) ** 2).sum() for w in (weight, target)]
    assert errors[1] < 0.5 * errors[0]


def test_without_cross_and_drift_the_target_is_the_weight() -> None:
    weight, x = gaussian(5, 12), layer_inputs(50, 12)
    assert np.array_equal(target_weight(weight, Statistics(gram=x.T @ x)), weight)
    target = target_weight(weight, Statistics(gram=x.T @ x, cross=x.T @ x))
    np.testing.assert_allclose(target, weight, rtol=1e-6, atol=1e-6)


def test_few_calibration_rows_and_dead_inputs_give_finite_planes() -> None:
    weight, x = gaussian(30, 80), layer_inputs(10, 80)  # rank 10 of 80
    x[:, 5:9] = 0
    gram = x.T @ x
    for statistics in (Statistics(gram=gram), Statistics(gram=gram, cross=1.1 * gram)):
        trits, scales = quantize_planes(weight, 2, 64, statistics)
        check_form(trits, scales, (30, 80), 2, 2)
        assert output_error(weight, x, 2, 64, Statistics(gram=gram)) < 0.02
        assert np.abs(dense(trits, scales, 64)).max() < 3 * np.abs(weight).max()


def test_inputs_that_are_always_zero_equal_no_statistics() -> None:
    weight, zeros = gaussian(6, 40), np.zeros((40, 40))
    with_zeros = quantize_planes(weight, 2, 32, Statistics(gram=zeros, cross=zeros))
    without = quantize_planes(weight, 2, 32)
    assert np.array_equal(with_zeros[0], without[0])
    assert np.array_equal(with_zeros[1], without[1])


def test_float32_statistics_are_accepted() -> None:
    weight, x = gaussian(6, 40), layer_inputs(200, 40)
    gram = (x.T @ x).astype(np.float32)
    wide = Statistics(gram=gram.astype(np.float64))
    narrow = Statistics(gram=gram)
    assert np.array_equal(quantize_planes(weight, 2, 32, narrow)[0], quantize_planes(weight, 2, 32, wide)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": np.zeros(3, np.float32)}, "weight must be a matrix"),
        ({"weight": np.zeros((0, 3), np.float32)}, "weight must be a matrix"),
        ({"weight": np.array([[np.nan]], np.float32)}, "weight must be finite"),
        ({"planes": 0}, "planes must be 1 to 3, not 0"),
        ({"planes": 4}, "planes must be 1 to 3, not 4"),
        ({"group_size": 0}, "group_size must be positive"),
        ({"statistics": Statistics(gram=np.eye(3))}, "the statistics have 3 inputs, the weight has 8"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quantize_planes(**{"weight": gaussian(4, 8), "planes": 2, "group_size": 4, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gram": np.zeros((3, 4))}, "gram must have"),
        ({"gram": np.zeros(3)}, "gram must have"),
        ({"cross": np.zeros((2, 3))}, "cross must have"),
        ({"drift": np.zeros((5, 4))}, "drift must have"),
        ({"gram": np.full((3, 3), np.inf)}, "gram must be finite"),
        ({"drift": np.full((5, 3), np.nan)}, "drift must be finite"),
    ],
)
def test_bad_statistics_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Statistics(**{"gram": np.eye(3), **arguments})


@pytest.mark.parametrize("planes", [2, 3])
def test_balanced_trits_are_the_digits_of_every_integer(planes: int) -> None:
    most = (3**planes - 1) // 2
    numbers = np.arange(-most, most + 1, dtype=np.int8)
    trits = balanced_trits(numbers, planes)
    assert set(np.unique(trits)) <= {-1, 0, 1}
    assert np.array_equal(fold(trits), numbers)


@pytest.mark.parametrize("planes", [2, 3])
def test_weights_that_are_sums_of_tied_planes_are_found_again(planes: int) -> None:
    rng, most = np.random.default_rng(7), (3**planes - 1) // 2
    codes = rng.integers(-most, most + 1, (20, 128)).astype(np.int8)
    codes[:, ::64] = most  # every group has the largest level, so that its scale is determined
    scales = rng.uniform(0.5, 2, (20, 2)).astype(np.float32)
    weight = (codes * np.repeat(scales, 64, axis=1)).astype(np.float32)
    trits, found = quantize_tied(weight, planes, 64)
    assert np.array_equal(fold(trits), codes)
    np.testing.assert_allclose(found[0], scales, rtol=1e-6)


def test_tied_planes_take_statistics_into_account() -> None:
    weight, x = gaussian(40, 128, 3), layer_inputs(600, 128, 4)
    errors = []
    for statistics in (None, Statistics(gram=(x.T @ x).astype(np.float64))):
        trits, scales = quantize_tied(weight, 2, 64, statistics)
        rounded = TernaryWeight(trits=trits, scale=scales, group_size=64, tied=True).dense()
        errors.append(float(((x @ (weight - rounded).T) ** 2).sum()))
    assert errors[1] < 0.5 * errors[0]


def test_free_scales_are_never_much_worse_than_tied_ones() -> None:
    weight = gaussian(100, 128, 5)
    free = dense(*quantize_planes(weight, 2, 64), 64)
    trits, scales = quantize_tied(weight, 2, 64)
    tied = TernaryWeight(trits=trits, scale=scales, group_size=64, tied=True).dense()
    assert ((weight - free) ** 2).sum() < ((weight - tied) ** 2).sum() < 1.3 * ((weight - free) ** 2).sum()


def test_tied_planes_need_two_or_three() -> None:
    for planes in (0, 1, 4):
        with pytest.raises(ValueError, match="tied planes must be 2 to 3"):
            quantize_tied(gaussian(2, 32), planes, 32)
