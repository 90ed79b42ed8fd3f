"""The results of the slots of a pass, as the accelerator writes them or after the host has scored tokens again."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.reference.integer_profile.head import real
from edgedec.reference.integer_profile.values import Logits

__all__ = ["Results"]

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Results:
    """Results of the requested slots, in r rows.

    Members:
        ids, logits: int32 and int64 [r, k], the largest logit first, of equal ones the smaller id; k is at most the
            vocabulary.
        mantissa, exponent: int64 [r]; a logit's real value is logit * mantissa * 2^exponent, before its soft-cap.
        sums: int64 [r], the sums of exponentials of the ids that the program counts (``Program.counted``), as
            ``head.sum_of_exponentials`` gives them.
        cap: the soft-cap; None without one.
    """

    ids: I32
    logits: I64
    mantissa: I64
    exponent: I64
    sums: I64
    cap: float | None = None

    @property
    def integers(self) -> Logits:
        """The logits with their scales."""
        return Logits(values=self.logits, mantissa=self.mantissa, exponent=self.exponent, cap=self.cap)

    @property
    def real(self) -> NDArray[np.float64]:
        """The logits as real numbers, [r, k]."""
        return real(self.integers)
