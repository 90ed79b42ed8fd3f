"""A device's integer logits as float32, and its likeliest tokens as those of whole rows of float32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.compiler.host import Results
from edgedec.reference.integer_profile.head import real, relative_sum, sum_of_exponentials, sum_shift
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime.sampling import portable_math
from edgedec.runtime.sampling.likeliest import Likeliest, find_likeliest

__all__ = ["SparseRows", "float_logits", "found_likeliest", "log_sums", "whole_likeliest"]


def float_logits(logits: Logits) -> NDArray[np.float32]:
    """Return logits as float32 [rows, n].

    Neither rounding to float32 nor a soft-cap may make a smaller integer equal to the largest of its row, so that the
    likeliest token is the same in both representations.
    """
    floats: NDArray[np.float32] = real(logits).astype(np.float32)
    top = floats.max(axis=1, keepdims=True)
    rounded_up = (floats == top) & (logits.values < logits.values.max(axis=1, keepdims=True))
    return np.where(rounded_up, np.nextafter(top, np.float32(-np.inf)), floats)


def found_likeliest(
    results: Results, k: int, *, ids: int, vocab: int, log_sum: bool
) -> tuple[NDArray[np.float32], Likeliest] | None:
    """Return the logits that a device has found, float32 [r, found], and the k likeliest tokens of whole rows.

    The result is None if these cannot be known: too many ids that the device has found pad the vocabulary, or the integers
    of others may be the same float32. Of equal floats the lower id comes first, and the device orders them by the integers.

    Args:
        results: the tokens that the device has found, those of the largest integers of each row.
        k: number of likeliest tokens.
        ids: number of the tokenizer's ids; larger ones pad the vocabulary.
        vocab: number of logits of a row.
        log_sum: True for ``Likeliest.log_sum``; the device must have counted the tokenizer's ids.
    """
    integers, k = results.logits, min(k, ids)
    last = integers[:, -1:]
    # The next smaller integer is the largest that a token has which was not found, unless it equals the last one.
    probed = np.concatenate([integers, last - 1], axis=1)
    floats = float_logits(replace(results.integers, values=probed))
    values, below = floats[:, :-1], floats[:, -1:]
    padding = results.ids >= ids
    if ((~padding).sum(axis=1) < k).any():
        return None
    order = np.lexsort((results.ids, -values, padding), axis=1)[:, :k]
    best = np.take_along_axis(values, order, 1)
    least = best[:, -1:]
    if integers.shape[1] < vocab:
        # Logits that equal the least one have to be found. Those of the last integer that were not found have larger ids.
        equal_found = (below < least) & ((values != least) | (integers == last)).all(axis=1, keepdims=True)
        if not ((values[:, -1:] < least) | equal_found).all():
            return None
    logarithms = None
    if log_sum:
        most = np.where(padding, integers.min(), integers).max(axis=1, keepdims=True)
        logarithms = log_sums(results.sums, replace(results.integers, values=most))
    return values, Likeliest(np.take_along_axis(results.ids, order, 1), best, logarithms)


def whole_likeliest(
    integers: Logits, k: int, ids: int, *, log_sum: bool, sums: NDArray[np.int64] | None
) -> tuple[NDArray[np.float32], Likeliest | None]:
    """Return whole rows of logits, float32 [r, vocab], and the k likeliest tokens of each; None for k = 0.

    Args:
        integers: the rows, at least one.
        k: number of likeliest tokens.
        ids: number of the tokenizer's ids; larger ones pad the vocabulary.
        log_sum: True for ``Likeliest.log_sum``: by the integer profile, or that of the floats if there is a soft-cap.
        sums: the sums of exponentials of the tokenizer's ids, [r], if the device has added them; 0 of a row that gets the
            sum of its logits.
    """
    logits, adds = float_logits(integers), log_sum and integers.cap is None
    top = find_likeliest(logits, k, ids, log_sum=log_sum and not adds)
    if top is None or not adds:
        return logits, top
    counted = integers.values[:, :ids]
    if sums is None or not sums.all():
        own = sum_of_exponentials(counted, integers.mantissa, sum_shift(integers.exponent))
        sums = own if sums is None else np.where(sums == 0, own, sums)
    largest = replace(integers, values=counted.max(axis=1, keepdims=True))
    return logits, top._replace(log_sum=log_sums(sums, largest))


class SparseRows:
    """Rows of logits, float32 [slots, vocab], of which only the likeliest are finite.

    They are used again in each pass, because to fill new rows of a whole vocabulary would take longer than all else that
    the host does with the likeliest.
    """

    def __init__(self, slots: int, vocab: int) -> None:
        self._rows = np.full((slots, vocab), -np.inf, np.float32)
        self._finite: list[NDArray[np.int32]] = []  # the ids of the rows that are filled
        self._lent = False

    def lend(self) -> NDArray[np.float32]:
        """Return the rows for somebody else's use, until the next call of ``filled``."""
        self._lent = True
        return self._rows

    def filled(self, ids: NDArray[np.int32], values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return rows with ``values`` [r, k] at ``ids`` [r, k] and -inf elsewhere, until the next call."""
        if self._lent:
            self._rows[:], self._lent, self._finite = -np.inf, False, []
        for row, places in enumerate(self._finite):
            self._rows[row, places] = -np.inf
        rows, self._finite = self._rows[: len(ids)], list(ids)
        np.put_along_axis(rows, ids.astype(np.int64), values, axis=1)
        return rows


def log_sums(sums: NDArray[np.int64], largest: Logits) -> NDArray[np.float64]:
    """Return the logarithm of the sum of the exponentials of each row, float64 [r].

    Args:
        sums: ``sum_of_exponentials`` of the rows, as a device or the definition gives them, [r].
        largest: the largest logit of each row; ``values`` are [r, 1].

    Raises:
        UnsupportedError: see ``relative_sum``.
    """
    logarithms: NDArray[np.float64] = portable_math.log(relative_sum(sums, largest))
    return float_logits(largest)[:, 0] + logarithms
