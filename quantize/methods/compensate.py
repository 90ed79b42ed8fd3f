"""Round to the levels of a codebook under the quadratic objective ``tr(E G E^T)`` of the error E = target - rounded.

Arrays are [columns, rows] as in ``levels``. A group is ``group_size`` neighbouring columns; the last group may be shorter.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgedec.quantize.methods.levels import Codebook, LevelSet, scale_step

__all__ = ["refine", "round_groups", "upper_factor"]

Float64 = npt.NDArray[np.float64]

_SCALE_ROUNDS = 3  # number of fits of a group's scales when rounding reaches the group
_ENOUGH = 1e-3  # relative gain of a sweep below which refinement ends


def upper_factor(gram: Float64) -> Float64:
    """Return the upper triangular V with V V^T = ``gram``, which must be positive definite.

    The objective is then a sum of squares, one for each column j: V[j, j]^2 (E_j + sum_{i<j} E_i V[i, j] / V[j, j])^2.
    """
    return np.asarray(np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1], np.float64)


def _round_block(target: Float64, carry: Float64, factor: Float64, levels: LevelSet) -> Float64:
    """Round the columns of a group one after the other; ``carry`` [columns, rows] is the error of the earlier groups."""
    rounded, error = np.empty_like(target), np.empty_like(target)
    for j, column in enumerate(target):
        compensated = column + (carry[j] + factor[:j, j] @ error[:j]) / factor[j, j]
        rounded[j] = levels.nearest(compensated)
        error[j] = column - rounded[j]
    return rounded


def round_groups(target: Float64, factor: Float64, group_size: int, codebook: Codebook) -> tuple[Float64, Float64]:
    """Round column by column with error compensation; a group's scales are fitted when rounding reaches the group.

    ``factor`` is the gram's ``upper_factor``. Return the rounded matrix [columns, rows] and the scales
    [groups, rows, K].
    """
    columns, rows = target.shape
    rounded, error = np.empty_like(target), np.empty_like(target)
    scales = np.empty((-(-columns // group_size), rows, codebook.scales))
    for group, start in enumerate(range(0, columns, group_size)):
        part = slice(start, start + group_size)
        block = np.ascontiguousarray(factor[part, part])
        carry = factor[:start, part].T @ error[:start]
        ideal = target[part] + np.linalg.solve(block.T, carry)  # undoes the earlier errors if nothing is rounded
        metric, fitted = block @ block.T, codebook.fit(ideal)
        best = np.full(rows, np.inf)
        for attempt in range(_SCALE_ROUNDS):
            levels = codebook.levels(fitted)
            candidate = _round_block(target[part], carry, block, levels)
            left = block.T @ (ideal - candidate)
            loss = np.einsum("cr,cr->r", left, left)
            better = loss < best
            scales[group, better], best[better] = fitted[better], loss[better]
            rounded[part] = np.where(better, candidate, rounded[part])
            if attempt < _SCALE_ROUNDS - 1:
                step = scale_step(levels.codes(candidate).astype(np.float64), block @ left, metric)
                fitted = codebook.ordered(fitted + step)
        error[part] = target[part] - rounded[part]
    return rounded, scales


def refine(
    target: Float64,
    gram: Float64,
    group_size: int,
    codebook: Codebook,
    rounded: Float64,
    scales: Float64,
    *,
    sweeps: int = 8,
) -> tuple[Float64, Float64]:
    """Refine a rounded matrix by coordinate descent.

    A sweep sets each element in turn to its best level given all others, and then fits the scales of its group. Neither step
    raises the objective of any row. Return a new rounded matrix and new scales.
    """
    rounded, scales = rounded.copy(), scales.copy()
    gradient = gram @ (target - rounded)
    before = np.inf
    for _ in range(sweeps):
        for group, start in enumerate(range(0, len(target), group_size)):
            part = slice(start, start + group_size)
            block = np.ascontiguousarray(gram[part, part])
            levels, old, moved = codebook.levels(scales[group]), rounded[part].copy(), np.empty_like(rounded[part])
            for j, value in enumerate(old):
                slope = gradient[start + j] - block[j, :j] @ moved[:j]
                rounded[start + j] = levels.nearest(value + slope / block[j, j])
                moved[j] = rounded[start + j] - value
            codes = levels.codes(rounded[part]).astype(np.float64)
            step = scale_step(codes, gradient[part] - block @ moved, block)
            rounded[part] += (codes @ step[:, :, None])[:, :, 0].T
            scales[group] = codebook.ordered(scales[group] + step)
            gradient -= gram[:, part] @ (rounded[part] - old)
        after = np.einsum("cr,cr->", target - rounded, gradient)
        if after >= (1 - _ENOUGH) * before:
            break
        before = after
    return rounded, scales
