"""The steps after the logits on the chip: the best ids, and the sum of exponentials for sampling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.reference.integer_profile.numbers import I64, clamp_shift, round_shift, shifted
from edgedec.reference.integer_profile.tables import EXP2_LAST, exp2_negative
from edgedec.reference.integer_profile.values import Logits

__all__ = ["LOG2E", "real", "sum_of_exponentials", "top"]

LOG2E = 47274  # floor(2^15 * log2(e) + 0.5): 1/256 octaves per nat are LOG2E * 2^-7
_DIFFERENCE_SHIFT = 6


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


def sum_of_exponentials(logits: Logits) -> tuple[I64, I64]:
    """Return largest s32 [r] and sum u33 [r], where ln(sum exp) of a row is largest * unit + ln(sum / 65535).

    d = min((largest - logit) >> 6, 2^26 - 1); u = rs(d * rs(A * 47274, 16), -(exponent + 15)), at most 4607; p as in
    attention.

    Raises:
        UnsupportedError: the logits have a soft-cap; exponentials of capped logits are computed by the host.
    """
    if logits.cap is not None:
        raise UnsupportedError(
            f"logits with a soft-cap of {logits.cap:g} have no integer sum of exponentials; use real()"
        )
    largest = logits.values.max(axis=1)
    d = np.minimum((largest[:, None] - logits.values) >> _DIFFERENCE_SHIFT, (1 << 26) - 1)
    factor = round_shift(logits.mantissa * LOG2E, 16)
    # real difference = d * 2^6 * A * 2^exponent; times 256 log2(e) = LOG2E * 2^-7; the factor dropped 16 bits.
    shift = clamp_shift(-(logits.exponent + _DIFFERENCE_SHIFT - 7 + 16))
    u = np.minimum(round_shift(d * factor[:, None], shift[:, None]), EXP2_LAST)
    return largest, exp2_negative(u).sum(axis=1)
