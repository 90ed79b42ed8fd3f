"""Compare rounding under a quadratic objective with definitions that are slow and obvious."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.quantize.methods import compensate
from edgedec.quantize.methods.compensate import refine, round_groups, upper_factor
from edgedec.quantize.methods.levels import FreePlanes, Levels, fit_scales


def correlated_gram(columns: int, seed: int, rank: int | None = None) -> np.ndarray:
    """Return strong correlations between inputs, as in trained layers, with 1 % damping."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((400, rank or columns // 3)) @ rng.standard_normal((rank or columns // 3, columns))
    gram = x.T @ x
    return np.asarray(gram + 0.01 * np.trace(gram) / columns * np.eye(columns))


def objective(error: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Return the objective of each row, for errors [columns, rows]."""
    value: np.ndarray = np.einsum("cr,cd,dr->r", error, gram, error)
    return value


def uncompensated(target: np.ndarray, group_size: int, planes: int) -> tuple[np.ndarray, np.ndarray]:
    groups = [target[i : i + group_size] for i in range(0, len(target), group_size)]
    scales = [fit_scales(group, planes) for group in groups]
    return np.concatenate([Levels(s).nearest(g) for s, g in zip(scales, groups, strict=True)]), np.stack(scales)


def test_upper_factor_is_upper_and_rebuilds_the_gram() -> None:
    gram = correlated_gram(9, 0)
    factor = upper_factor(gram)
    assert np.array_equal(factor, np.triu(factor))
    np.testing.assert_allclose(factor @ factor.T, gram, rtol=1e-10)


def test_one_group_of_exact_levels_is_rounded_as_optq_defines_it() -> None:
    """Compare with the column loop of OPTQ, which inverts once per column, on levels that are 0 and the fitted scale."""
    columns, rows = 12, 20
    gram, rng = correlated_gram(columns, 1), np.random.default_rng(1)
    target = rng.standard_normal((columns, rows))
    rounded, scales = round_groups(target, upper_factor(gram), columns, FreePlanes(2))
    expected, work = np.empty_like(target), target.copy()
    for j in range(columns):
        expected[j] = Levels(scales[0]).nearest(work[j])
        inverse = np.linalg.inv(gram[j:, j:])
        work[j:] -= np.outer(inverse[:, 0] / inverse[0, 0], work[j] - expected[j])
    np.testing.assert_allclose(rounded, expected, atol=1e-9)


@pytest.mark.parametrize("group_size", [8, 16, 20])
def test_later_groups_take_up_the_errors_of_earlier_ones(group_size: int) -> None:
    columns = 40
    gram, rng = correlated_gram(columns, 2), np.random.default_rng(2)
    target = rng.standard_normal((columns, 30))
    rounded, scales = round_groups(target, upper_factor(gram), group_size, FreePlanes(2))
    assert scales.shape == (-(-columns // group_size), 30, 2)
    expected, work = np.empty_like(target), target.copy()
    for j in range(columns):
        expected[j] = Levels(scales[j // group_size]).nearest(work[j])
        inverse = np.linalg.inv(gram[j:, j:])
        work[j:] -= np.outer(inverse[:, 0] / inverse[0, 0], work[j] - expected[j])
    np.testing.assert_allclose(rounded, expected, atol=1e-9)


def test_a_group_with_the_same_inputs_takes_up_the_error_for_any_weights() -> None:
    x = np.random.default_rng(8).standard_normal((100, 16))
    gram = np.concatenate([x, x], axis=1).T @ np.concatenate([x, x], axis=1) + 1e-6 * np.eye(32)
    target = np.concatenate([np.random.default_rng(9).standard_normal((16, 20)), np.zeros((16, 20))])
    rounded, scales = round_groups(target, upper_factor(gram), 16, FreePlanes(2))
    assert np.all(scales[1, :, 0] > 0)
    first_alone = np.where(np.arange(32)[:, None] < 16, rounded, 0)
    assert objective(target - rounded, gram).sum() < 0.05 * objective(target - first_alone, gram).sum()


@pytest.mark.parametrize("planes", [2, 3])
def test_more_fits_of_a_groups_scales_are_never_worse(planes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gram, rng = correlated_gram(24, 10), np.random.default_rng(10)
    target = rng.standard_normal((24, 200))
    losses = []
    for rounds in (1, 2, 6):
        monkeypatch.setattr(compensate, "_SCALE_ROUNDS", rounds)
        rounded, _ = round_groups(target, upper_factor(gram), 24, FreePlanes(planes))
        losses.append(objective(target - rounded, gram))
    assert np.all(losses[1] <= losses[0] * (1 + 1e-9))
    assert np.all(losses[2] <= losses[1] * (1 + 1e-9))
    assert losses[2].sum() < 0.97 * losses[0].sum()


@pytest.mark.parametrize("planes", [1, 2, 3])
def test_compensation_and_then_refinement_lower_the_objective(planes: int) -> None:
    gram, rng = correlated_gram(48, 3), np.random.default_rng(3)
    target = rng.standard_normal((48, 64))
    plain, _ = uncompensated(target, 16, planes)
    rounded, scales = round_groups(target, upper_factor(gram), 16, FreePlanes(planes))
    better, _ = refine(target, gram, 16, FreePlanes(planes), rounded, scales)
    losses = [objective(target - x, gram).sum() for x in (plain, rounded, better)]
    assert losses[1] < 0.8 * losses[0]
    assert losses[2] < 0.99 * losses[1]


@pytest.mark.parametrize("planes", [1, 2, 3])
def test_no_sweep_raises_the_objective_of_any_row(planes: int) -> None:
    gram, rng = correlated_gram(30, 4), np.random.default_rng(4)
    target = rng.standard_normal((30, 50))
    state = uncompensated(target, 12, planes)
    loss = objective(target - state[0], gram)
    first = loss
    for _ in range(12):
        state = refine(target, gram, 12, FreePlanes(planes), *state, sweeps=1)
        now = objective(target - state[0], gram)
        assert np.all(now <= loss * (1 + 1e-9))
        loss = now
    assert loss.sum() < 0.9 * first.sum()


def test_sweeps_continue_until_nothing_is_gained() -> None:
    gram, rng = correlated_gram(30, 5), np.random.default_rng(5)
    target = rng.standard_normal((30, 50))
    start = uncompensated(target, 30, 2)
    losses = [
        objective(target - refine(target, gram, 30, FreePlanes(2), *start, sweeps=sweeps)[0], gram).sum()
        for sweeps in (1, 2, 8, 50)
    ]
    assert losses[1] < 0.999 * losses[0]
    assert losses[3] <= losses[2] <= losses[1]
    assert losses[3] > 0.98 * losses[2]


def test_a_refined_matrix_is_optimal_in_every_single_element() -> None:
    gram, rng = correlated_gram(10, 6), np.random.default_rng(6)
    target = rng.standard_normal((10, 8))
    rounded, scales = refine(target, gram, 10, FreePlanes(2), *uncompensated(target, 10, 2), sweeps=200)
    # The gain of a sweep ends the refinement: a few sweeps more reach the fixed point.
    for _ in range(20):
        rounded, scales = refine(target, gram, 10, FreePlanes(2), rounded, scales, sweeps=1)
    loss = objective(target - rounded, gram)
    values = Levels(scales[0]).values
    for j in range(10):
        for level in np.concatenate([values, -values]):
            changed = rounded.copy()
            changed[j] = level
            assert np.all(objective(target - changed, gram) >= loss * (1 - 1e-9))


def test_refined_trits_and_scales_belong_together() -> None:
    gram, rng = correlated_gram(20, 7), np.random.default_rng(7)
    target = rng.standard_normal((20, 6))
    rounded, scales = refine(target, gram, 8, FreePlanes(3), *uncompensated(target, 8, 3))
    for group, start in enumerate(range(0, 20, 8)):
        part = rounded[start : start + 8]
        np.testing.assert_allclose(Levels(scales[group]).nearest(part), part, atol=1e-12)
