"""Exponential, logarithm and sum in float64 whose results are the same bits on every processor.

``numpy.exp`` and ``numpy.log`` take different code paths on AVX2, AVX-512 and Arm, and their last bits differ; so does the
order in which ``numpy.sum`` adds. A sampled text must not depend on that. Each function here is a fixed sequence of IEEE 754
additions, multiplications and divisions, one NumPy operation each, so that no compiler contracts two of them into a fused
multiply-add. The result is within 2 units in the last place of the exact one.

Source: argument reduction as in W. J. Cody and W. Waite, "Software Manual for the Elementary Functions" (1980); the
polynomials are the Taylor series of exp and of 2 atanh.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST_EXPONENT", "exp", "log", "total"]

F64 = NDArray[np.float64]

LEAST_EXPONENT = -69.0  # exp of less, below 2**-99, is 0: nothing here ever becomes a subnormal number
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # the upper 32 bits of ln 2: a product with an exponent is exact
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")  # ln 2 minus _LN2_HIGH
_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
# 1 / k! for k = 13 down to 0. The remainder of exp is at most ln(2) / 2, where the next term is below 2**-57.
_EXP_TERMS = tuple(
    1.0 / factorial
    for factorial in (6227020800, 479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1)
)
# 1 / (2k + 1) for k = 10 down to 0. The square of the argument of atanh is at most 0.0295, so the next term is below 2**-60.
_ATANH_TERMS = tuple(1.0 / (2 * k + 1) for k in range(10, -1, -1))


def exp(x: F64) -> F64:
    """Return e to the power of ``x``, float64 [n], x <= 0; 0 where x is less than ``LEAST_EXPONENT``."""
    kept = np.maximum(x, LEAST_EXPONENT)
    exponent = np.rint(kept * _LOG2_E)
    rest = (kept - exponent * _LN2_HIGH) - exponent * _LN2_LOW
    result: F64 = np.ldexp(_polynomial(_EXP_TERMS, rest), exponent.astype(np.int32))
    result[x < LEAST_EXPONENT] = 0
    return result


def log(x: F64) -> F64:
    """Return the natural logarithm of ``x``, float64 [n], normal numbers above 0."""
    mantissa, exponent = np.frexp(x)  # mantissa in [0.5, 1)
    small = mantissa < _SQRT_HALF
    mantissa = np.where(small, mantissa + mantissa, mantissa)
    power = exponent - small
    ratio = (mantissa - 1) / (mantissa + 1)
    series = _polynomial(_ATANH_TERMS, ratio * ratio) * (ratio + ratio)
    result: F64 = power * _LN2_HIGH + (power * _LN2_LOW + series)
    return result


def total(x: F64) -> float:
    """Return the sum of ``x``, float64 [n], n >= 1, added from the first to the last."""
    return float(np.add.accumulate(x)[-1])


def _polynomial(terms: tuple[float, ...], x: F64) -> F64:
    """Return the polynomial with the coefficients ``terms``, the highest power's first, by Horner's rule."""
    result: F64 = np.full_like(x, terms[0])
    for term in terms[1:]:
        result *= x
        result += term
    return result
