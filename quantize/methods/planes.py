"""Represent a float matrix as one to three ternary planes, or as evenly spaced levels, with scales per row and group.

Without statistics the squared error of the weights is minimised: the nearest level of each element and the least-squares
scales are computed in turn. With statistics the squared error of the layer's *output* on calibration rows is minimised:

1. The target is ``target_weight`` instead of the weight. Its output on the quantized model's inputs comes closest to the
   output of the float model.
2. Error compensation rounds one column after the other to its nearest level, after the errors of the preceding columns have
   been carried over. The scales of a group are fitted when rounding reaches the group.
3. Refinement sets each element in turn to its best level given all others, and then fits each group's scales.

Source: OPTQ (2210.17323) for step 2, in the triangular form of QuIP (2307.13304, section 3.2); GPTAQ (2504.02692) for
step 1 without drift; PTQTP (2509.16989) for the planes. The rest, tied scales included, is derived here.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedec.quantize.blas_threads import one_thread
from edgedec.quantize.methods.compensate import refine, round_groups, upper_factor
from edgedec.quantize.methods.grid import Grid
from edgedec.quantize.methods.levels import Codebook, FreePlanes
from edgedec.workers.local import usable_cores

__all__ = [
    "MAX_PLANES",
    "ScaleRangeError",
    "Statistics",
    "quantize_groups",
    "quantize_planes",
    "quantize_tied",
    "target_weight",
    "with_ridge",
]

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Int8 = npt.NDArray[np.int8]

MAX_PLANES = 3
# Share of the gram's mean diagonal that is added to its diagonal. Two planes of stories260K in groups of 64 reach 1.205,
# 1.184 and 1.174 times the float perplexity at 0.01 (the usual value), 0.1 and 0.3 with 3,000 calibration tokens, and 1.168,
# 1.162 and 1.163 times with 16,000. 0.3 is not used because the few outlier inputs of larger models raise the mean.
_DAMPING = 0.1
_ROWS_AT_A_TIME = 1024  # rows quantized together; rows are independent, and this bounds the working memory
_MOST_THREADS = 4  # threads of such rows, each of which has some float64 blocks of them
# Share of a row's largest scale below which a group holds rounding errors of float64 in place of zeros
_NOISE = 2.0**-45
_PLAIN_STEPS = 100  # upper bound on the steps of the alternation, which converges long before


class ScaleRangeError(ValueError):
    """Scales are outside the range in which their type keeps all of its bits; the message says how many, and the range."""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Sums over calibration rows of one linear layer's inputs, preferably in float64.

    X_q [rows, in] are the inputs in the quantized model so far (after activation quantization), X_f the same rows in
    the float model. ``gram`` [in, in] is X_q^T X_q and ``cross`` [in, in] is X_f^T X_q; without ``cross`` the layer
    reproduces its own weights on X_q. ``drift`` [out, in] is (H_f - H_q)^T X_q for a layer whose output is added to a
    residual stream H, taken before the addition; with it the layer also compensates the error of the stream so far.
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


def with_ridge(gram: Float64) -> tuple[Float64, float]:
    """Return a gram with a tenth of its mean diagonal added to its diagonal, and what is added."""
    ridge = _DAMPING * float(np.trace(gram)) / len(gram)
    damped = gram.astype(np.float64)
    damped.flat[:: len(gram) + 1] += ridge
    return damped, ridge


def target_weight(weight: Float32, statistics: Statistics) -> Float64:
    """Return the matrix [out, in] whose output on X_q is closest to the float model's, pulled to ``weight`` by the damping.

    It is ``(weight (X_f^T X_q + ridge) + drift) (X_q^T X_q + ridge)^-1``; the ridge is 10 % of the gram's mean diagonal.
    """
    target = weight.astype(np.float64)
    damped, ridge = with_ridge(statistics.gram)
    if ridge == 0 or (statistics.cross is None and statistics.drift is None):
        return target
    product = target @ (statistics.gram if statistics.cross is None else statistics.cross) + ridge * target
    if statistics.drift is not None:
        product += statistics.drift
    return np.asarray(np.linalg.solve(damped, product.T).T, np.float64)


def quantize_planes(
    weight: Float32, planes: int, group_size: int, statistics: Statistics | None = None
) -> tuple[Int8, Float32]:
    """Quantize ``weight`` float32 [out, in] to ternary planes.

    Return trits int8 [planes, out, in] in {-1, 0, 1} and scales float32 [planes, out, groups]. A group is ``group_size``
    columns; the last group may have fewer. Scales are non-negative; where a group of a row does not use a plane, its scale
    and trits are 0. The result depends on the arguments alone.

    Raises:
        ValueError: an argument is out of range, has the wrong shape or is not finite.
    """
    if not 1 <= planes <= MAX_PLANES:
        raise ValueError(f"planes must be 1 to {MAX_PLANES}, not {planes}")
    return quantize_groups(weight, FreePlanes(planes), group_size, statistics)


def quantize_tied(
    weight: Float32, planes: int, group_size: int, statistics: Statistics | None = None
) -> tuple[Int8, Float32]:
    """Quantize ``weight`` float32 [out, in] to ternary planes with tied scales: each is 3 times that of the next plane.

    Return trits int8 [planes, out, in] and the scales of the last plane, float32 [1, out, groups], as ``quantize_planes``
    does. With tied scales the levels are evenly spaced: -4..4 times the scale with two planes, -13..13 with three.

    Raises:
        ValueError: an argument is out of range, has the wrong shape or is not finite.
    """
    if not 2 <= planes <= MAX_PLANES:
        raise ValueError(f"tied planes must be 2 to {MAX_PLANES}, not {planes}")
    most = (3**planes - 1) // 2
    codes, scales = quantize_groups(weight, Grid(-most, most), group_size, statistics)
    return balanced_trits(codes[0], planes), scales


def balanced_trits(codes: Int8, planes: int) -> Int8:
    """Return the trits [planes, ...] of integers: codes = the sum of trits[p] * 3^(planes - 1 - p)."""
    trits = np.empty((planes, *codes.shape), np.int8)
    rest = codes.copy()
    for plane in reversed(range(planes)):
        trits[plane] = (rest + np.int8(1)) % np.int8(3) - np.int8(1)  # NumPy's remainder is never negative
        rest = (rest - trits[plane]) // np.int8(3)
    return trits


def quantize_groups(
    weight: Float32,
    codebook: Codebook,
    group_size: int,
    statistics: Statistics | None = None,
    *,
    dtype: npt.DTypeLike = np.float32,
) -> tuple[Int8, npt.NDArray[np.floating]]:
    """Quantize ``weight`` float32 [out, in] to the levels of a codebook with K scales for each row and group.

    Return codes int8 [K, out, in] and scales [K, out, groups] of the type ``dtype``. A group of a row whose codes of one of
    the K are all 0 has the scale 0 there.

    Raises:
        ScaleRangeError: a scale overflows ``dtype``, or is so small that ``dtype`` would drop bits of it.
        ValueError: an argument is out of range, has the wrong shape or is not finite.
    """
    if weight.ndim != 2 or 0 in weight.shape:
        raise ValueError(f"weight must be a matrix, its shape is {weight.shape}")
    if not np.isfinite(weight).all():
        raise ValueError("weight must be finite")
    if group_size < 1:
        raise ValueError(f"group_size must be positive, not {group_size}")
    if statistics is not None and statistics.gram.shape[1] != weight.shape[1]:
        raise ValueError(f"the statistics have {statistics.gram.shape[1]} inputs, the weight has {weight.shape[1]}")
    group_size = min(group_size, weight.shape[1])
    rows, columns = weight.shape
    codes = np.empty((codebook.scales, rows, columns), np.int8)
    scales = np.empty((codebook.scales, rows, -(-columns // group_size)), dtype)
    if statistics is not None and not np.trace(statistics.gram) > 0:
        statistics = None  # inputs that are always zero give no information
    if statistics is not None:
        target = target_weight(weight, statistics)
        gram, _ = with_ridge(statistics.gram)
        factor = upper_factor(gram)

    def quantize_rows(start: int) -> int:
        """Quantize some rows, and return how many of their scales are outside the range of ``dtype``."""
        part = slice(start, start + _ROWS_AT_A_TIME)
        if statistics is not None:
            x = np.ascontiguousarray(target[part].T)
            x, fitted = refine(x, gram, group_size, codebook, *round_groups(x, factor, group_size, codebook))
        else:
            x = np.ascontiguousarray(weight[part].T, np.float64)
            fitted = np.stack([codebook.fit(group, _PLAIN_STEPS) for group in _groups(x, group_size)])
        codes[:, part], scales[:, part] = _pack(x, fitted.astype(np.float64), group_size, codebook, scales.dtype)
        return int(np.count_nonzero(np.isnan(scales[:, part])))

    starts = range(0, rows, _ROWS_AT_A_TIME)
    if statistics is None:
        outside = sum(map(quantize_rows, starts))  # other matrices are quantized by other processes meanwhile
    else:
        with one_thread(), ThreadPoolExecutor(min(len(starts), usable_cores(), _MOST_THREADS)) as threads:
            outside = sum(threads.map(quantize_rows, starts))
    if outside:
        limits = np.finfo(scales.dtype)
        raise ScaleRangeError(
            f"{outside} of its {scales.size} scales would be outside {limits.smallest_normal:.3g} to {limits.max:.5g}, "
            f"where {scales.dtype} keeps all bits"
        )
    return codes, scales


def _stored(scales: Float64, dtype: np.dtype[np.floating]) -> npt.NDArray[np.floating]:
    """Return scales [groups, rows, K] as stored, NaN where ``dtype`` overflows or drops bits."""
    magnitudes = np.abs(scales)
    noise = magnitudes < _NOISE * magnitudes.max(axis=0, initial=0)
    with np.errstate(over="ignore"):
        stored = np.where(noise, 0, scales).astype(dtype)
    lost = (np.abs(stored) < np.finfo(dtype).smallest_normal) & (magnitudes > 0) & ~noise
    stored[lost | ~np.isfinite(stored)] = np.nan
    return stored


def _groups(x: Float64, group_size: int) -> list[Float64]:
    return [x[start : start + group_size] for start in range(0, len(x), group_size)]


def _pack(
    x: Float64, scales: Float64, group_size: int, codebook: Codebook, dtype: np.dtype[np.floating]
) -> tuple[Int8, npt.NDArray[np.floating]]:
    """Return codes [K, rows, columns] of the levels nearest to ``x`` [columns, rows], and the scales as stored.

    A scale that ``dtype`` does not hold with all of its bits is NaN.
    """
    stored = _stored(scales, dtype)  # [groups, rows, K]
    codes = np.concatenate(
        [
            codebook.levels(np.nan_to_num(s.astype(np.float64))).codes(g)
            for s, g in zip(stored, _groups(x, group_size), strict=True)
        ],
        axis=1,
    )
    for group, start in enumerate(range(0, len(x), group_size)):
        within = codes[:, start : start + group_size]
        within *= (stored[group] != 0)[:, None]
        stored[group] *= within.any(axis=1)
    return codes.transpose(2, 0, 1), stored.transpose(2, 1, 0)
