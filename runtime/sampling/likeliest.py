"""The likeliest tokens of rows of logits: what a pass returns of a row where the whole of it would take longer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime.sampling.log_sum import log_sum as log_sum_of

__all__ = ["Likeliest", "RowLikeliest", "find_likeliest", "largest_ids"]

_I32 = NDArray[np.int32]
_F32 = NDArray[np.float32]
_F64 = NDArray[np.float64]


class RowLikeliest(NamedTuple):
    """The likeliest tokens of one row. The members are those of ``Likeliest``.

    ``log_sum`` None: the pass did not ask for it.
    """

    ids: _I32  # [k]
    logits: _F32  # [k]
    log_sum: float | None


class Likeliest(NamedTuple):
    """The likeliest tokens of r rows of logits among the tokenizer's ids. Others, which pad the vocabulary, do not count.

    The tokens of a row are in descending order of their logits; of equal logits, the lower id comes first, and
    NaN before all others. k is the number that the pass asked for, or that of the tokenizer's ids if these are fewer.
    """

    ids: _I32  # [r, k]
    logits: _F32  # [r, k]
    # [r] natural logarithm of the sum of the exponentials of the logits of all of the tokenizer's ids, as ``log_sum.py``
    # defines it for whole rows, to the last bit, or the integer profile (``head.py``) on an accelerator; NaN if a logit is
    # NaN or +inf. None: the pass did not ask for it.
    log_sum: _F64 | None

    def row(self, number: int) -> RowLikeliest:
        """Return the likeliest tokens of one of the rows."""
        log_sum = None if self.log_sum is None else float(self.log_sum[number])
        return RowLikeliest(self.ids[number], self.logits[number], log_sum)


def find_likeliest(logits: _F32, k: int, ids: int, *, log_sum: bool) -> Likeliest | None:
    """Return the k likeliest tokens of whole rows of logits, float32 [r, V]; None for k = 0.

    Args:
        logits: the rows.
        k: number of tokens.
        ids: number of the tokenizer's ids, which are the first columns.
        log_sum: True to compute ``Likeliest.log_sum``.
    """
    if not k:
        return None
    rows = logits[:, :ids]
    best = np.empty((len(rows), min(k, rows.shape[1])), np.int32)
    for out, row in zip(best, rows, strict=True):
        out[:] = largest_ids(row, k)
    sums = np.array([log_sum_of(row) for row in rows], np.float64) if log_sum else None
    return Likeliest(best, np.take_along_axis(rows, best, 1), sums)


def largest_ids(row: _F32, k: int) -> NDArray[np.intp]:
    """Return the places of the k largest values of a row, or of all of them, in descending order.

    Of equal values, the one with the lower place comes first. NaN comes before all others, so that nobody misses it.

    Example: ``largest_ids(row([1, 3, 3, 2]), 3)`` is [1, 2, 3].
    """
    if np.isnan(row.max()):
        nan = np.isnan(row)
        return np.lexsort((np.where(nan, np.float32(0), -row), ~nan))[:k]
    if k == 1:
        return np.array([row.argmax()])
    places = np.arange(len(row))
    if k < len(row):
        # argpartition could return any of several equal values. So take the k-th value, then the lowest places down to it.
        places = np.flatnonzero(row >= np.partition(row, len(row) - k)[len(row) - k])
    return places[np.argsort(-row[places], kind="stable")[:k]]
