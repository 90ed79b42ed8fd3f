"""Trit-planes: a float matrix as one to three ternary planes with a scale per row, group of columns and plane.

Without statistics this minimises the squared error of the weights: nearest level for each element and least squares for
the scales, in turn. With statistics it minimises the squared error of the layer's *output* on calibration rows:

1. The target is not the weight but ``target_weight``: what, fed with the quantized model's inputs, comes closest to
   what the float model computes.
2. Error compensation: one column after the other is rounded to its nearest level, after the errors of the columns
   before it have been carried over; the scales of a group are fitted when it is reached.
3. Refinement: each element in turn takes its best level given all others, then each group's scales by least squares.

Source: OPTQ (2210.17323) for step 2, in the triangular form of QuIP (2307.13304, section 3.2); GPTAQ (2504.02692) for
step 1 without drift; PTQTP (2509.16989) for the planes. The rest is derived here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedec.quantize.methods.compensate import refine, round_groups, upper_factor
from edgedec.quantize.methods.levels import Levels, fit_scales

__all__ = ["MAX_PLANES", "Statistics", "quantize_planes", "target_weight"]

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Int8 = npt.NDArray[np.int8]

MAX_PLANES = 3
# Of the gram's mean diagonal, added to all of it. Two planes of stories260K, groups of 64, come to 1.205, 1.184 and 1.174
# times the float perplexity at 0.01 (the usual value), 0.1 and 0.3 with 3,000 calibration tokens, and to 1.168, 1.162 and
# 1.163 with 16,000. Not 0.3, because a few outlier inputs, which larger models have, raise the mean.
_DAMPING = 0.1
_ROWS_AT_A_TIME = 1024  # rows are independent problems: this bounds the working memory
_PLAIN_STEPS = 100  # a bound only: the alternation ends by itself long before


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Sums over calibration rows of one linear layer's inputs, preferably as float64.

    X_q [rows, in] are the inputs in the quantized model so far (after activation quantization), X_f the same rows in
    the float model. ``gram`` [in, in] is X_q^T X_q and ``cross`` [in, in] X_f^T X_q; without ``cross`` the layer
    reproduces its own weights on X_q. ``drift`` [out, in] is (H_f - H_q)^T X_q for a layer whose output is added to a
    residual stream H, taken before the addition: then it also undoes what the stream has lost so far.
    """

    gram: Float64
    cross: Float64 | None = None
    drift: Float64 | None = None

    def __post_init__(self) -> None:
        width = self.gram.shape[-1]
        for name, array in (("gram", self.gram), ("cross", self.cross), ("drift", self.drift)):
            if array is None:
                continue
            if array.ndim != 2 or array.shape[1] != width or (name != "drift" and array.shape[0] != width):
                raise ValueError(f"{name} must have {width} columns and match the gram, its shape is {array.shape}")
            if not np.isfinite(array).all():
                raise ValueError(f"{name} must be finite")


def _damped(gram: Float64) -> tuple[Float64, float]:
    ridge = _DAMPING * float(np.trace(gram)) / len(gram)
    damped = gram.astype(np.float64)
    damped.flat[:: len(gram) + 1] += ridge
    return damped, ridge


def target_weight(weight: Float32, statistics: Statistics) -> Float64:
    """The matrix [out, in] whose output on X_q is closest to the float model's, pulled to ``weight`` by the damping.

    ``(weight (X_f^T X_q + ridge) + drift) (X_q^T X_q + ridge)^-1``, the ridge being 10 % of the gram's mean diagonal.
    """
    target = weight.astype(np.float64)
    damped, ridge = _damped(statistics.gram)
    if ridge == 0 or (statistics.cross is None and statistics.drift is None):
        return target
    wanted = target @ (statistics.gram if statistics.cross is None else statistics.cross) + ridge * target
    if statistics.drift is not None:
        wanted += statistics.drift
    return np.asarray(np.linalg.solve(damped, wanted.T).T, np.float64)


def quantize_planes(
    weight: Float32, planes: int, group_size: int, statistics: Statistics | None = None
) -> tuple[Int8, Float32]:
    """Ternary planes of ``weight`` float32 [out, in].

    Returns trits int8 [planes, out, in] in {-1, 0, 1} and scales float32 [planes, out, groups], a group being
    ``group_size`` columns, the last possibly fewer. Scales are non-negative; where a group of a row does not use a
    plane, scale and trits are 0 there. The result is a function of the arguments alone.

    Raises: ValueError for arguments that are out of range, of the wrong shape or not finite.
    """
    if weight.ndim != 2 or 0 in weight.shape:
        raise ValueError(f"weight must be a matrix, its shape is {weight.shape}")
    if not np.isfinite(weight).all():
        raise ValueError("weight must be finite")
    if not 1 <= planes <= MAX_PLANES:
        raise ValueError(f"planes must be 1 to {MAX_PLANES}, not {planes}")
    if group_size < 1:
        raise ValueError(f"group_size must be positive, not {group_size}")
    if statistics is not None and statistics.gram.shape[1] != weight.shape[1]:
        raise ValueError(f"the statistics are of {statistics.gram.shape[1]} inputs, the weight has {weight.shape[1]}")
    group_size = min(group_size, weight.shape[1])
    rows, columns = weight.shape
    trits = np.empty((planes, rows, columns), np.int8)
    scales = np.empty((planes, rows, -(-columns // group_size)), np.float32)
    if statistics is not None and not np.trace(statistics.gram) > 0:
        statistics = None  # inputs that are always zero teach nothing
    if statistics is not None:
        target = target_weight(weight, statistics)
        gram, _ = _damped(statistics.gram)
        factor = upper_factor(gram)
    for start in range(0, rows, _ROWS_AT_A_TIME):
        part = slice(start, start + _ROWS_AT_A_TIME)
        if statistics is not None:
            x = np.ascontiguousarray(target[part].T)
            x, found = refine(x, gram, group_size, *round_groups(x, factor, group_size, planes))
        else:
            x = np.ascontiguousarray(weight[part].T, np.float64)
            found = np.stack([fit_scales(group, planes, steps=_PLAIN_STEPS) for group in _groups(x, group_size)])
        trits[:, part], scales[:, part] = _pack(x, found, group_size)
    return trits, scales


def _groups(x: Float64, group_size: int) -> list[Float64]:
    return [x[start : start + group_size] for start in range(0, len(x), group_size)]


def _pack(x: Float64, scales: Float64, group_size: int) -> tuple[Int8, Float32]:
    """Trits [planes, rows, columns] of the levels nearest to ``x`` [columns, rows], and the scales as stored."""
    with np.errstate(over="ignore"):
        stored = scales.astype(np.float32)  # [groups, rows, planes]
    if not np.isfinite(stored).all():
        raise ValueError("weight is too large: its scales overflow float32")
    trits = np.concatenate(
        [Levels(s.astype(np.float64)).trits(g) for s, g in zip(stored, _groups(x, group_size), strict=True)], axis=1
    )
    for group, start in enumerate(range(0, len(x), group_size)):
        within = trits[:, start : start + group_size]
        within *= (stored[group] != 0)[:, None]
        stored[group] *= within.any(axis=1)
    return trits.transpose(2, 0, 1), stored.transpose(2, 1, 0)
