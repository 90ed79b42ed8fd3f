"""A device's integer logits as float32, and its likeliest tokens as those of whole rows of float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.compiler.host import Results
from edgedec.reference.integer_profile.head import real
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime.sampling.likeliest import Likeliest

__all__ = ["float_logits", "found_likeliest"]


def float_logits(logits: Logits) -> NDArray[np.float32]:
    """Return logits as float32 [rows, n].

    Neither rounding to float32 nor a soft-cap may make a smaller integer equal to the largest of its row, so that the
    likeliest token is the same in both representations.
    """
    floats: NDArray[np.float32] = real(logits).astype(np.float32)
    top = floats.max(axis=1, keepdims=True)
    rounded_up = (floats == top) & (logits.values < logits.values.max(axis=1, keepdims=True))
    return np.where(rounded_up, np.nextafter(top, np.float32(-np.inf)), floats)


def found_likeliest(results: Results, k: int, *, ids: int, vocab: int) -> tuple[NDArray[np.float32], Likeliest] | None:
    """Return the logits that a device has found, float32 [r, found], and the k likeliest tokens of whole rows.

    The result is None if these cannot be known: too many ids that the device has found pad the vocabulary, or the integers
    of others may be the same float32. Of equal floats the lower id comes first, and the device orders them by the integers.

    Args:
        results: the tokens that the device has found, those of the largest integers of each row.
        k: number of likeliest tokens.
        ids: number of the tokenizer's ids; larger ones pad the vocabulary.
        vocab: number of logits of a row.
    """
    integers, k = results.logits, min(k, ids)
    last = integers[:, -1:]
    # The next smaller integer is the largest that a token has which was not found, unless it equals the last one.
    probed = np.concatenate([integers, last - 1], axis=1)
    floats = float_logits(Logits(values=probed, mantissa=results.mantissa, exponent=results.exponent, cap=results.cap))
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
    return values, Likeliest(np.take_along_axis(results.ids, order, 1), best, None)
