"""Round to the levels of a codebook under the quadratic objective ``tr(E G E^T)`` of the error E = target - rounded.

Arrays are [columns, rows] as in ``levels``. A group is ``group_size`` neighbouring columns; the last group may be shorter.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgedec.quantize.methods.levels import Codebook, LevelSet, moved_by, scale_step

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
    rounded, error, turned = np.empty_like(target), np.empty_like(target), np.ascontiguousarray(factor.T)
    for j, column in enumerate(target):
        compensated = turned[j, :j] @ error[:j]
        compensated += carry[j]
        compensated /= turned[j, j]
        compensated += column
        rounded[j] = levels.nearest(compensated)
        np.subtract(column, rounded[j], out=error[j])
    return rounded


def round_groups(target: Float64, factor: Float64, group_size: int, codebook: Codebook) -> tuple[Float64, Float64]:
    """Round column by column with error compensation; a group's scales are fitted when rounding reaches the group.

    ``factor`` is the gram's ``upper_factor``. Return the rounded matrix [columns, rows] and the scales
    [groups, rows, K].
    """
    columns, rows = target.shape
    # The products over all earlier groups are nearly all of the work. They are computed in float32, whose rounding moves
    # the value that is rounded to a level by less than a thousandth of the distance between two levels.
    rounded, error, coarse = np.empty_like(target), np.empty(target.shape, np.float32), factor.astype(np.float32)
    scales = np.empty((-(-columns // group_size), rows, codebook.scales))
    for group, start in enumerate(range(0, columns, group_size)):
        part = slice(start, start + group_size)
        block = np.ascontiguousarray(factor[part, part])
        carry = (coarse[:start, part].T @ error[:start]).astype(np.float64)
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
    coarse, error = gram.astype(np.float32), (target - rounded).astype(np.float32)  # see round_groups
    objective = float(np.vdot(error, coarse @ error))
    for _ in range(sweeps):
        gain = 0.0
        for group, start in enumerate(range(0, len(target), group_size)):
            part = slice(start, start + group_size)
            block, gradient = np.ascontiguousarray(gram[part, part]), (coarse[part] @ error).astype(np.float64)
            levels, old = codebook.levels(scales[group]), rounded[part]
            new, moved = np.empty_like(old), np.empty_like(old)
            for j, value in enumerate(old):
                best = block[j, :j] @ moved[:j]
                np.subtract(gradient[j], best, out=best)
                best /= block[j, j]
                best += value
                new[j] = levels.nearest(best)
                np.subtract(new[j], value, out=moved[j])
            codes = levels.codes(new).astype(np.float64)
            step = scale_step(codes, gradient - block @ moved, block)
            new += moved_by(codes, step)
            scales[group] = codebook.ordered(scales[group] + step)
            moved = new - old
            gain += 2 * float(np.vdot(moved, gradient)) - float(np.vdot(moved, block @ moved))
            rounded[part] = new
            error[part] = target[part] - new
        if gain <= _ENOUGH * objective:
            break
        objective -= gain
    return rounded, scales
