"""Check and convert natively ternary weights without loss, or round float weights to ternary by their mean magnitude."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.errors import UnsupportedError
from edgedec.quantize.methods.float_bits import (
    Rows,
    absolute_sum,
    all_finite,
    largest_magnitude,
    least_magnitude,
    nonzeros,
    pieces,
    signs_from,
    value_of,
)

__all__ = ["absmean_ternary", "native_ternary", "native_ternary_groups"]

F32 = npt.NDArray[np.float32]

_LEAST_MEAN = np.float32(1e-5)  # least mean magnitude in absmean, as in transformers


def native_ternary(weight: Rows, name: str = "tensor") -> tuple[npt.NDArray[np.int8], np.float32]:
    """Return trits int8 in {-1, 0, 1} and one scale such that ``scale * trits`` equals ``weight`` exactly.

    ``weight`` [out, in] is float32, float16 or bfloat16; ``name`` is used in messages. The scale is the only nonzero
    magnitude (not the mean of magnitudes, which padding changes); a tensor of zeros has scale 0.

    Raises:
        UnsupportedError: there is more than one nonzero magnitude, or a value is not finite.
    """
    _require_finite(weight, name)
    largest = largest_magnitude(weight)
    trits = signs_from(weight, largest)
    if nonzeros(weight) != np.count_nonzero(trits):
        values = np.asarray(weight[:], np.float32)
        distinct = np.unique(np.abs(values[values != 0])).size
        raise UnsupportedError(
            f"{name} is not ternary: it has {distinct} distinct nonzero magnitudes, a ternary tensor has 1; "
            "quantize it with --planes 2"
        )
    return trits, value_of(weight.dtype, largest)


def absmean_ternary(weight: Rows, name: str = "tensor") -> tuple[npt.NDArray[np.int8], np.float32]:
    """Round a float matrix to the nearest of -m, 0 and m, where m is the mean magnitude rounded to the type of the matrix.

    Return trits int8 [out, in] and the scale float32, which is 0 if all trits are 0. The sum here is in float64, and
    transformers sums in float32, so a weight within a rounding error of m / 2 may be rounded differently.

    Raises:
        FloatingPointError: a value is not finite.
        UnsupportedError: the scale is not finite.

    Source: 2402.17764, equations 1 to 3; ``AutoBitLinear`` of transformers 5.23.
    """
    total = absolute_sum(weight)
    if math.isnan(total):
        raise FloatingPointError(f"{name} holds values that are not finite")
    mean = np.float32(total / math.prod(weight.shape))
    inverse = np.float32(1) / np.maximum(mean, _LEAST_MEAN)
    scale = np.float32((np.float32(1) / inverse).astype(weight.dtype))
    if not np.isfinite(scale):
        raise UnsupportedError(f"{name} holds magnitudes whose mean does not fit into {weight.dtype}")
    with np.errstate(over="ignore"):  # a product that overflows is far above the threshold
        # A trit is nonzero if rint(v * inverse) is at least 1, which grows with v.
        trits = signs_from(weight, least_magnitude(weight.dtype, lambda value: bool(np.rint(value * inverse) >= 1)))
    return trits, scale if trits.any() else np.float32(0)


def native_ternary_groups(
    weight: npt.NDArray[Any], group_size: int, name: str = "tensor"
) -> tuple[npt.NDArray[np.int8], F32]:
    """Return trits [out, in] and scales [out, groups] as ``native_ternary`` does, with a scale per row and group.

    A group is ``group_size`` columns; the last group of a row may be shorter. A group of zeros has scale 0.

    Raises:
        UnsupportedError: a group has more than one nonzero magnitude, or a value is not finite.
    """
    weight = np.ascontiguousarray(weight)
    _require_finite(weight, name)
    starts = np.arange(0, weight.shape[1], group_size)
    scales = np.empty((len(weight), len(starts)), np.float32)
    trits = signs_from(weight, 1)
    for some in pieces(*weight.shape):
        magnitudes = np.abs(weight[some].astype(np.float32, copy=False))
        scales[some] = np.maximum.reduceat(magnitudes, starts, axis=1)
        for group, start in enumerate(starts):
            inside = slice(start, start + group_size)
            wrong = (scales[some, group, None] * np.abs(trits[some, inside]) != magnitudes[:, inside]).any(axis=1)
            if wrong.any():
                raise UnsupportedError(
                    f"{name} is not ternary in groups of {group_size}: row {some.start + int(wrong.argmax())} has "
                    f"several nonzero magnitudes from column {start} on; quantize it with --planes 2"
                )
    return trits, scales


def _require_finite(weight: Rows, name: str) -> None:
    if not all_finite(weight):
        raise UnsupportedError(f"{name} holds values that are not finite; a ternary tensor holds -s, 0 and s only")
