"""Compare float16, bfloat16 and float32 values by the integers that their bits form.

Without its sign bit the integer of a float grows with the float's magnitude, so "at least as large as" becomes a comparison
of integers. For types of two bytes this is several times faster than a conversion to float32, which NumPy does value by
value. A matrix is processed some rows at a time, so that intermediate arrays stay in a core's cache and the matrix may stay
in its file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Rows",
    "absolute_sum",
    "all_finite",
    "group_magnitudes",
    "largest_magnitude",
    "least_magnitude",
    "nonzeros",
    "pieces",
    "signs_from",
    "value_of",
]

Array = NDArray[Any]

_HALF, _BRAIN, _SINGLE = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
_VALUES_AT_ONCE = 1 << 18
# The exponent field of float16 is 112 less than that of float32 for the same power of two; that of bfloat16 is equal.
_HALF_SHIFT, _HALF_FACTOR = 13, 2.0**112


def pieces(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices of ``rows`` that hold about 2^18 values each."""
    step = max(1, _VALUES_AT_ONCE // max(1, columns))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


class Rows(Protocol):
    """Interface of a vector or matrix: an array, or an object that reads rows from a file when they are indexed."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __getitem__(self, rows: slice, /) -> Array: ...


def _pieces_of(array: Rows) -> Iterator[Array]:
    slices = pieces(array.shape[0], math.prod(array.shape[1:])) if array.shape else ()
    return (np.ascontiguousarray(array[some]) for some in slices)


def _unsigned(array: Array) -> Array:
    return array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint32)


def _sign(dtype: np.dtype[Any]) -> int:
    return 1 << (8 * dtype.itemsize - 1)


def _infinity(dtype: np.dtype[Any]) -> int:
    return {_HALF: 0x7C00, _BRAIN: 0x7F80, _SINGLE: 0x7F800000}[dtype]


def _magnitudes(piece: Array) -> Array:
    bits = _unsigned(piece)
    magnitudes: Array = bits & bits.dtype.type(_sign(piece.dtype) - 1)
    return magnitudes


def value_of(dtype: np.dtype[Any], bits: int) -> np.float32:
    """Return the float whose bits, read as an integer, are ``bits``."""
    kind = np.uint16 if dtype.itemsize == 2 else np.uint32
    return np.float32(np.array([bits], kind).view(dtype)[0])


def largest_magnitude(array: Rows) -> int:
    """Return the bits of the largest magnitude. NaN counts as larger than infinity; an empty array gives 0."""
    return max((int(_magnitudes(piece).max()) for piece in _pieces_of(array)), default=0)


def all_finite(array: Rows) -> bool:
    return largest_magnitude(array) < _infinity(array.dtype)


def group_magnitudes(piece: Array, size: int) -> Array:
    """Return the bits of the magnitudes of a matrix [rows, columns] as unsigned integers [rows, groups, size].

    A group is ``size`` neighbouring columns; the last one is filled with zeros.
    """
    magnitudes = _magnitudes(np.ascontiguousarray(piece))
    if missing := -magnitudes.shape[1] % size:
        magnitudes = np.pad(magnitudes, ((0, 0), (0, missing)))
    return magnitudes.reshape(len(magnitudes), -1, size)


def nonzeros(array: Rows) -> int:
    """Return the number of values that are not zero."""
    return sum(int(np.count_nonzero(_magnitudes(piece))) for piece in _pieces_of(array))


def least_magnitude(dtype: np.dtype[Any], reached: Callable[[np.float32], bool]) -> int | None:
    """Return the bits of the least finite magnitude for which ``reached`` is true, or None if there is none.

    ``reached`` must be true for every larger magnitude, too.
    """
    low, high = 0, _infinity(dtype)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(value_of(dtype, middle)) else (middle + 1, high)
    return low if low < _infinity(dtype) else None


def absolute_sum(array: Rows) -> float:
    """Return the sum of all magnitudes in float64, or NaN if a value is not finite. For float16 it is exact up to 2^29."""
    total, factor = 0.0, _HALF_FACTOR if array.dtype == _HALF else 1.0
    for piece in _pieces_of(array):
        magnitudes = _magnitudes(piece)
        if magnitudes.max() >= _infinity(array.dtype):
            return math.nan
        bits = magnitudes.astype(np.uint32, copy=False)
        if array.dtype == _HALF:
            bits <<= np.uint32(_HALF_SHIFT)
        elif array.dtype == _BRAIN:
            bits <<= np.uint32(16)
        total += float(bits.view(np.float32).astype(np.float64).sum())
    return total * factor


def signs_from(array: Rows, least: int | None) -> NDArray[np.int8]:
    """Return the sign, -1 or 1, of each value whose magnitude has at least the bits ``least``, and 0 for all others.

    ``array`` [out, in] must be finite. If ``least`` is None, all results are 0.
    """
    signs = np.zeros(array.shape, np.int8)
    if least is None:
        return signs
    least = max(least, 1)  # zero has no sign
    kind = np.int16 if array.dtype.itemsize == 2 else np.int32
    at = 0
    for piece in _pieces_of(array):
        bits = _unsigned(piece)
        positive = bits.view(kind) >= kind(least)
        negative = bits >= bits.dtype.type(_sign(array.dtype) | least)
        np.subtract(positive.view(np.int8), negative.view(np.int8), out=signs[at : at + len(piece)])
        at += len(piece)
    return signs
