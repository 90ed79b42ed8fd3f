"""A rough head, of one or two planes of trits, whose likeliest tokens are scored again with the rows of the int8 head.

The rough logits of a row are those of any matrix. Its *candidates* are the k likeliest ids by them, as ``head.top``
orders them. The logits of these are the int8 head's, from the same codes; those of other ids are the rough ones in the same
unit, lowered together until all are below every candidate's. So the best k tokens of a row are its candidates, in the order
of the int8 head, and the others keep theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.reference.integer_profile.head import SUM_BITS, exponential, octave, sum_shift, top
from edgedec.reference.integer_profile.numbers import I64, bit_length, round_shift, shifted
from edgedec.reference.integer_profile.values import Logits
from edgedec.schemes import Int8Weight

__all__ = ["HeadRows", "Rescored", "Rescoring"]

LOGIT_SHIFT = 11  # a logit drops so many bits of the product with its row's mantissa
_MOST_SUM_BITS = 58  # bits of a sum: 27, and as many as 5 bits can say to be left out


@dataclass(frozen=True, kw_only=True)
class HeadRows:
    """The rows of an int8 head.

    Members:
        codes: int8 [vocab, width], as the bundle has them.
        mantissa: int64 [vocab], mantissas u16 of the rows; those of a row whose scale is negative are negative.
        exponent: exponent of the mantissas.
        pre_shift: shift that reduces a sum to s27.
    """

    codes: NDArray[np.int8]
    mantissa: I64
    exponent: int
    pre_shift: int

    @property
    def logit_exponent(self) -> int:
        """Exponent by which a logit's real value is logit * A * 2^(ea + exponent)."""
        return self.exponent + self.pre_shift + LOGIT_SHIFT

    @classmethod
    def of(cls, weight: Int8Weight, code_unit: float, *, exponent: int, pre_shift: int) -> HeadRows:
        """Return the rows of a weight, whose constants in the integer profile have ``exponent`` and ``pre_shift``.

        Args:
            weight: the head.
            code_unit: factor of the scales of the codes.
        """
        real = np.abs(weight.scale).astype(np.float64) * code_unit
        values = np.floor(shifted(real, -exponent) + 0.5).astype(np.int64)
        return cls(
            codes=weight.codes,
            mantissa=np.where(weight.scale < 0, -values, values),
            exponent=exponent,
            pre_shift=pre_shift,
        )

    def logits(self, ids: NDArray[np.integer], codes: I64) -> I64:
        """Return the logits s32 [r, k] of ids [r, k], for the codes s8 [r, width] of each row."""
        rows = self.codes[ids].astype(np.float64)  # sums of 32 bits are exact
        sums = np.matmul(rows, codes[..., None].astype(np.float64))[..., 0].astype(np.int64)
        mantissa = self.mantissa[ids]
        t = round_shift(np.where(mantissa < 0, -sums, sums), self.pre_shift)
        return round_shift(t * np.abs(mantissa), LOGIT_SHIFT)


@dataclass(frozen=True, kw_only=True)
class Rescored:
    """The candidates of r rows, the likeliest by their exact logits first, and smaller ids first if equal.

    Members:
        ids: int32 [r, k].
        values: their logits by the int8 head, s32 [r, k].
        rough: their logits by the rough head, s32 [r, k].
    """

    ids: NDArray[np.int32]
    values: I64
    rough: I64


@dataclass(frozen=True, kw_only=True)
class Rescoring:
    """The second step of a rough head.

    Members:
        rows: the rows of the int8 head.
        candidates: number of ids of a row that are scored again, k.
        rough_exponent: exponent of the rough logits, as ``HeadRows.logit_exponent``.
    """

    rows: HeadRows
    candidates: int
    rough_exponent: int

    @property
    def coarser(self) -> int:
        """Bits by which the unit of a rough logit exceeds that of an exact one."""
        return self.rough_exponent - self.rows.logit_exponent

    def again(self, ids: NDArray[np.int32], rough: I64, codes: I64) -> Rescored:
        """Score candidates again: their ids [r, k] and rough logits s32 [r, k], with the codes s8 [r, width] of each row."""
        exact = self.rows.logits(ids, codes)
        order = np.lexsort((ids, -exact), axis=1)
        picked: list[I64] = [np.take_along_axis(array, order, 1) for array in (ids.astype(np.int64), exact, rough)]
        return Rescored(ids=picked[0].astype(np.int32), values=picked[1], rough=picked[2])

    def whole(self, rough: I64, found: Rescored) -> I64:
        """Return whole rows of logits, [r, vocab]: exact ones of the candidates, and below them the rough ones of others."""
        bits, ids = self.coarser, found.ids.astype(np.int64)
        aligned: I64 = rough << bits if bits >= 0 else round_shift(rough, -bits)
        below = found.values[:, -1:] - 1
        np.put_along_axis(aligned, ids, -(1 << 62), axis=1)  # these do not count
        aligned -= np.maximum(aligned.max(axis=1, keepdims=True) - below, 0)
        np.put_along_axis(aligned, ids, found.values, axis=1)
        return aligned

    def logits(self, rough: Logits, codes: I64) -> Logits:
        """Return the whole rows of rough logits [r, vocab], after their candidates were scored again."""
        ids = top(rough, self.candidates)
        found = self.again(ids, np.take_along_axis(rough.values, ids.astype(np.int64), 1), codes)
        return Logits(
            values=self.whole(rough.values, found),
            mantissa=rough.mantissa,
            exponent=rough.exponent - self.coarser,
            cap=rough.cap,
        )

    def sums(self, words: I64, found: Rescored, logits: Logits, counted: int) -> I64:
        """Return the sums of exponentials of rows, u32 [r], as ``head.sum_of_exponentials`` writes them.

        They are those of the rough logits, of which the candidates' are taken out and their exact ones put in:
        s = sum of the exact 2^8 p + max(rough sum - sum of the rough 2^8 p, 0) * 2^(its octave - that of the exact sum).
        The second summand is at most 2^57 - 1.

        Args:
            words: sums of the rough logits of the first ``counted`` ids, u32 [r].
            found: the candidates.
            logits: the exact logits of the candidates with their scales.
            counted: number of ids that are added; a row without such a candidate has the sum 0.
        """
        adds = found.ids < counted
        exact = octave(found.values, logits.mantissa, sum_shift(logits.exponent))
        rough = octave(found.rough, logits.mantissa, sum_shift(logits.exponent + self.coarser))
        (exact_sum, exact_top), (taken, rough_top) = exponential(exact, adds), exponential(rough, adds)
        whole = (words & (1 << SUM_BITS) - 1) << (words >> SUM_BITS)
        rest, bits = np.maximum(whole - taken, 0), rough_top - exact_top
        # A shift to the left that leaves 57 bits.
        room = _MOST_SUM_BITS - 1 - bit_length(rest)
        kept = np.where(bits > room, (1 << _MOST_SUM_BITS - 1) - 1, rest << np.clip(bits, 0, np.maximum(room, 0)))
        kept = np.where(rest == 0, 0, kept >> np.clip(-bits, 0, 62))
        total = exact_sum + kept
        dropped = np.maximum(bit_length(total >> SUM_BITS), 0)
        return np.where(adds.any(axis=1), total >> dropped | dropped << SUM_BITS, 0)
