"""The logarithm of the sum of the exponentials of a row of logits, which turns logits into log-probabilities.

The sum is one of integers, so that it does not depend on the order of its terms: it is the same bits in NumPy, in a GPU's
kernel (``runtime/gpu/shaders/exp_sums.wgsl``), for a row alone and among others. The weight of a logit x in a row whose
largest is m is a whole number of units of 2^-``UNIT_BITS``:

1. h = m / 2 - x / 2 in float32, with one rounding, whose error e is computed exactly (``_error``). The weight is 0 unless
   h < 15. The halves cannot overflow.
2. u = (floor(2^28 h) + trunc(2^28 e)) * ``LOG2_E``: the difference m - x in octaves, in units of 2^-58.
3. power = 2^-fraction(u) in units of 2^-31, by Horner's rule on the upper 32 bits of the fraction. The coefficients are
   ``TERMS``, of alternating signs, and each product keeps its upper 32 bits.
4. weight = floor(power * 2^(UNIT_BITS - 31) / 2^floor(u)).

A weight differs from exp(x - m) by less than 2^-25 of it and one unit, so the logarithm of the sum differs from the exact
one by less than 2^-25 and a unit for each logit. A sum of up to 2^21 weights fits 64 bits.

Source: derived here. ``TERMS`` interpolate 2^-f between 0 and 1 at the zeros of a Chebyshev polynomial, and at 0.
The error of a difference is that of D. E. Knuth, "The Art of Computer Programming", volume 2, 4.2.2.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime.sampling import portable_math

__all__ = ["LOG2_E", "MOST_HALF", "TERMS", "UNIT_BITS", "log_of", "log_sum", "weight_sum"]

UNIT_BITS = 42  # bits of a weight after the point
MOST_HALF = 15.0  # halves of differences of logits from which on weights are 0; exp(-30) is less than a unit
LOG2_E = 3098164009  # floor(2^31 log2(e))
# Coefficients of 2^-f, the highest power's first, in units of 2^-31 without their signs.
TERMS = (24275, 319744, 2856024, 20652244, 119193747, 515882469, 1488522236, 2147483648)
_CHUNK = 8192  # logits whose intermediate values stay in a core's cache


def weight_sum(row: NDArray[np.float32], largest: np.float32) -> int:
    """Return the sum of the weights of a row, float32 [n], none of which exceeds ``largest``, which is finite.

    Example: ``weight_sum(row, row.max())`` is 2 * 2^42 for two equal logits.
    """
    one_half, scale, total = np.float32(0.5), np.float32(1 << 28), 0
    most = largest * one_half
    for start in range(0, len(row), _CHUNK):
        halves = row[start : start + _CHUNK] * one_half
        halves = halves[most - halves < MOST_HALF]
        near = most - halves
        distance = (near * scale).astype(np.int64) + (_error(most, halves, near) * scale).astype(np.int64)
        octaves = distance.astype(np.uint64) * np.uint64(LOG2_E)
        fraction = (octaves >> np.uint64(26)) & np.uint64(0xFFFFFFFF)
        power = np.full(len(near), TERMS[0], np.uint64)
        for term in TERMS[1:]:
            power *= fraction
            power >>= np.uint64(32)
            np.subtract(np.uint64(term), power, out=power)
        power <<= np.uint64(UNIT_BITS - 31)
        power >>= octaves >> np.uint64(58)
        total += int(power.sum())
    return total


def _error(a: np.float32, b: NDArray[np.float32], difference: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a - b - difference, where ``difference`` is a - b with one rounding. The result is exact."""
    taken = difference - a
    error: NDArray[np.float32] = (a - (difference - taken)) - (b + taken)
    return error


def log_of(largest: float, weights: int) -> float:
    """Return the logarithm of the sum of a row, from its largest logit and the sum of its weights, which is not 0."""
    return largest + float(portable_math.log(np.array([math.ldexp(weights, -UNIT_BITS)]))[0])


def log_sum(row: NDArray[np.float32]) -> float:
    """Return the natural logarithm of the sum of the exponentials of a row of logits, float32 [n], n >= 1.

    It is NaN if a logit is NaN or +inf, or if all are -inf, as only a target's wrong results are.
    """
    largest = row.max()
    return log_of(float(largest), weight_sum(row, largest)) if math.isfinite(largest) else math.nan
