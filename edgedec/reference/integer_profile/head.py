"""The steps after the logits on the chip: the best ids, and the sum of exponentials for log-probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.reference.integer_profile.numbers import I64, bit_length, clamp_shift, round_shift, shifted
from edgedec.reference.integer_profile.tables import OCTAVE_FRACTION_BITS, octave_power
from edgedec.reference.integer_profile.values import Logits

__all__ = [
    "LOG2E",
    "SUM_BITS",
    "exponential",
    "octave",
    "real",
    "relative_sum",
    "sum_of_exponentials",
    "sum_shift",
    "top",
]

LOG2E = 47274  # floor(2^15 * log2(e) + 0.5): octaves per nat
_COUNTED_OCTAVES = 32  # below the last one a logit adds less than 2^-31 of the largest
_SUM_FRACTION_BITS = 8  # so that halving an octave's sum drops next to nothing
SUM_BITS = 27  # bits of a sum beside the shift that they leave out


def real(logits: Logits) -> NDArray[np.float64]:
    """Return the logits as real numbers, float64 [r, vocab], with their soft-cap."""
    unit = shifted(logits.mantissa, logits.exponent)
    uncapped = logits.values.astype(np.float64) * unit[:, None]
    return uncapped if logits.cap is None else logits.cap * np.tanh(uncapped / logits.cap)


def top(logits: Logits, k: int) -> NDArray[np.int32]:
    """Return the ids of the k largest logits of each row, [r, k]: larger logits first, and smaller ids first if equal.

    The integers are compared, so that a soft-cap, which is monotonic, makes no more of them equal.
    """
    order = np.argsort(-logits.values, axis=1, kind="stable")
    return order[:, :k].astype(np.int32)


def sum_of_exponentials(values: I64, mantissa: I64, shift: I64) -> I64:
    """Return the sum of the exponentials of each row of logits, u32 [r]: its upper bits, u27, below their shift, u5.

    A logit in octaves, of which 12 bits are a fraction, is e = rs(logit * rs(A * 47274, 15), shift). Each adds 2^fraction,
    u16, to the sum of its whole octave, u36; the 32 highest octaves of a row count. The sum of a row is s = (s >> 1) + the
    octave's * 2^8, from the lowest octave to the highest, u45. No result depends on the order of a row's logits.

    Args:
        values: logits, s32 [r, n].
        mantissa: A, u16 [r].
        shift: ``sum_shift`` of the exponents, or any in 0..47, [r].

    Returns:
        the sums; 0 of rows without logits.
    """
    if not values.shape[1]:
        return np.zeros(len(values), np.int64)
    octaves = octave(values, mantissa, shift)
    whole, power = octaves >> OCTAVE_FRACTION_BITS, octave_power(octaves & (1 << OCTAVE_FRACTION_BITS) - 1)
    depth = whole.max(axis=1, keepdims=True) - whole
    sums = np.zeros(len(values), np.int64)
    for below in reversed(range(_COUNTED_OCTAVES)):
        sums = (sums >> 1) + (np.where(depth == below, power, 0).sum(axis=1) << _SUM_FRACTION_BITS)
    dropped = np.maximum(bit_length(sums) - SUM_BITS, 0)
    return sums >> dropped | dropped << SUM_BITS


def relative_sum(sums: I64, largest: Logits) -> NDArray[np.float64]:
    """Return the sum of each row in units of the exponential of its largest logit, float64 [r]; ln(sum exp) of the row is
    the largest real logit + ln of it.

    Args:
        sums: the words of ``sum_of_exponentials``, u32 [r].
        largest: the largest logit of each row; ``values`` are [r, 1].

    Raises:
        UnsupportedError: the logits have a soft-cap, or their unit is 16 or more.
    """
    if largest.cap is not None:
        raise UnsupportedError(
            f"logits with a soft-cap of {largest.cap:g} have no integer sum of exponentials; use real()"
        )
    if len(sums) and int(largest.exponent.max()) > -OCTAVE_FRACTION_BITS:
        raise UnsupportedError(
            f"a logit's unit is {float(shifted(largest.mantissa, largest.exponent).max()):g}, and a sum of exponentials "
            "needs one below 16: the head's weights are too large; use --device cpu for log-probabilities"
        )
    octaves = octave(largest.values, largest.mantissa, sum_shift(largest.exponent))[:, 0]
    one = octave_power(octaves & (1 << OCTAVE_FRACTION_BITS) - 1) << _SUM_FRACTION_BITS
    result: NDArray[np.float64] = ((sums & (1 << SUM_BITS) - 1) << (sums >> SUM_BITS)) / one
    return result


def sum_shift(exponent: I64) -> I64:
    """Return the bits that the product of a logit drops to become octaves, 0..47, for the exponents of ``Logits``."""
    return clamp_shift(-(exponent + OCTAVE_FRACTION_BITS))


def exponential(octaves: I64, adds: NDArray[np.bool_]) -> tuple[I64, I64]:
    """Return for each row the sum of 2^8 p of some of its logits in octaves [r, n], and the highest octave of these, [r].

    A term drops a bit for each octave below the highest one, and is nothing from the 32nd on. Without any, both are 0.
    """
    whole, power = octaves >> OCTAVE_FRACTION_BITS, octave_power(octaves & (1 << OCTAVE_FRACTION_BITS) - 1)
    least = int(whole.min(initial=0))
    highest = np.where(adds, whole, least).max(axis=1, initial=least)
    depth = np.minimum(highest[:, None] - whole, _COUNTED_OCTAVES)
    terms = np.where(adds & (depth < _COUNTED_OCTAVES), power << _SUM_FRACTION_BITS, 0) >> np.maximum(depth, 0)
    return terms.sum(axis=1), highest


def octave(values: I64, mantissa: I64, shift: I64) -> I64:
    """Return logits [r, n] in octaves, s49, whose lowest 12 bits are a fraction."""
    return round_shift(values * round_shift(mantissa * LOG2E, 15)[:, None], shift[:, None])
