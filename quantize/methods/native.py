"""Check and convert natively ternary weights without loss, or round float weights to ternary by their mean magnitude."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgedec.errors import UnsupportedError
from edgedec.quantize.methods.float_bits import (
    Rows,
    absolute_sum,
    all_finite,
    group_magnitudes,
    largest_magnitude,
    least_magnitude,
    nonzeros,
    pieces,
    signs_from,
    value_of,
)

__all__ = [
    "NativeTernary",
    "NotTernaryError",
    "absmean_ternary",
    "find_ternary",
    "grouped_ternary",
    "native_ternary_groups",
]

F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]

_LEAST_GROUP, _MOST_GROUP = 32, 128  # columns that share a scale in a bundle

_LEAST_MEAN = np.float32(1e-5)  # least mean magnitude in absmean, as in transformers


class NotTernaryError(UnsupportedError):
    """A matrix has more magnitudes than a ternary matrix may have."""


class NativeTernary(NamedTuple):
    """A ternary matrix.

    Members:
        trits: int8 [out, in] in {-1, 0, 1}.
        scales: float32 [1] with ``group_size`` 0, else [out, groups]; 0 where all trits are 0, and never negative.
        group_size: columns of a row that share a scale: 128, 64 or 32; 0: the matrix has one scale.
    """

    trits: I8
    scales: F32
    group_size: int


def find_ternary(weight: Rows, name: str = "tensor") -> NativeTernary:
    """Return a matrix of floats [out, in] as trits and scales whose products equal it exactly.

    There is one scale if the matrix has one nonzero magnitude, and otherwise one for each row and group of columns. The
    groups are the largest of 128, 64 and 32 columns in which each has one nonzero magnitude; ``name`` is used in messages.

    Raises:
        NotTernaryError: a group of 32 columns has more than one nonzero magnitude.
        FloatingPointError: a value is not finite.
    """
    first = next(pieces(*weight.shape), slice(0))
    if _has_one_magnitude(weight[first]):  # reading some rows tells that a matrix has groups, or is not ternary
        largest = largest_magnitude(weight)
        trits = signs_from(weight, largest)
        if nonzeros(weight) == np.count_nonzero(trits):
            _require_finite(weight, name)
            return NativeTernary(trits, np.array([value_of(weight.dtype, largest)]), 0)
    return _merged(*native_ternary_groups(weight, _LEAST_GROUP, name), _LEAST_GROUP, 0)


def grouped_ternary(codes: I8, scales: F32 | np.float32, group_size: int, *, least: int = 0) -> NativeTernary:
    """Return codes and their scales with the widest groups that say the same, and with scales that are not negative.

    Args:
        codes: int8 [out, in]; a sign that a scale has moves to them.
        scales: float32 [] with ``group_size`` 0, else [out, groups].
        group_size: columns of a group in the file, a multiple or divisor of 128 from 32 on.
        least: 0 if the result may have one scale for the matrix, and 1 if it must have groups.
    """
    if not group_size:
        group_size, scales = 128, np.broadcast_to(scales, (len(codes), -(-codes.shape[1] // 128)))
    scales = np.asarray(scales, np.float32)
    if group_size > _MOST_GROUP:  # groups of TQ2_0
        groups = -(-codes.shape[1] // _MOST_GROUP)
        scales, group_size = np.repeat(scales, group_size // _MOST_GROUP, axis=1)[:, :groups], _MOST_GROUP
    signed, kept = np.empty_like(codes), np.empty(scales.shape, np.float32)
    starts = np.arange(0, codes.shape[1], group_size)
    for some in pieces(*codes.shape):
        used = np.logical_or.reduceat(codes[some] != 0, starts, axis=1)
        kept[some] = np.where(used, np.abs(scales[some]), np.float32(0))
        signs = np.sign(scales[some]).astype(np.int8)
        np.multiply(codes[some], np.repeat(signs, group_size, axis=1)[:, : codes.shape[1]], out=signed[some])
    return _merged(signed, kept, group_size, least)


def _has_one_magnitude(piece: Any) -> bool:
    magnitudes = group_magnitudes(piece, 1)
    return bool(((magnitudes == magnitudes.max(initial=0)) | (magnitudes == 0)).all())


def _merged(trits: I8, scales: F32, group_size: int, least: int) -> NativeTernary:
    """Join neighbouring groups with the same scale, where 0 equals any scale, as long as a group has columns to join."""
    most = scales.max(initial=0)
    if not least and ((scales == most) | (scales == 0)).all():
        return NativeTernary(trits, np.array([most], np.float32), 0)
    # A row that fits a narrower group has one scale with either: a file's groups and those of the values get one size.
    while group_size > max(_LEAST_GROUP, 2 * trits.shape[1] - 1):
        group_size //= 2
    while group_size < min(_MOST_GROUP, trits.shape[1]):
        pairs = np.pad(scales, ((0, 0), (0, scales.shape[1] % 2))).reshape(len(scales), -1, 2)
        joined = pairs.max(axis=2)
        if not ((pairs == joined[..., None]) | (pairs == 0)).all():
            break
        scales, group_size = joined, 2 * group_size
    return NativeTernary(trits, np.ascontiguousarray(scales), group_size)


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


def native_ternary_groups(weight: Rows, group_size: int, name: str = "tensor") -> tuple[I8, F32]:
    """Return trits [out, in] and scales [out, groups] whose products equal ``weight`` exactly.

    A group is ``group_size`` columns; the last group of a row may be shorter. The scale of a group is its only nonzero
    magnitude (not the mean of magnitudes, which padding changes); a group of zeros has scale 0.

    Raises:
        NotTernaryError: a group has more than one nonzero magnitude.
        FloatingPointError: a value is not finite.
    """
    outputs, inputs = weight.shape
    trits, scales = np.empty((outputs, inputs), np.int8), np.empty((outputs, -(-inputs // group_size)), np.float32)
    for some in pieces(outputs, inputs):
        piece = np.ascontiguousarray(weight[some])
        _require_finite(piece, name)
        magnitudes = group_magnitudes(piece, group_size)
        largest = magnitudes.max(axis=2)
        other = ((magnitudes != largest[..., None]) & (magnitudes != 0)).any(axis=2)
        if other.any():
            row, group = np.argwhere(other)[0]
            raise NotTernaryError(
                f"{name} is not ternary in groups of {group_size}: row {some.start + row} has several nonzero magnitudes "
                f"from column {group * group_size} on; quantize it with --planes 2"
            )
        trits[some] = signs_from(piece, 1)
        scales[some] = largest.view(piece.dtype)
    return trits, scales


def _require_finite(weight: Rows, name: str) -> None:
    if not all_finite(weight):
        raise FloatingPointError(f"{name} holds values that are not finite")
