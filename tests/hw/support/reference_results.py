"""Compute what the head writes, byte for byte."""

from __future__ import annotations

import numpy as np

from edgedec.reference.integer_profile.head import sum_of_exponentials
from edgedec.reference.integer_profile.numbers import I64, clamp_shift

__all__ = ["output_bytes"]


def output_bytes(
    x: I64, first: int, scales: list[tuple[int, int]], k: int, *, rows: bool, counted: int = 0, shift: int = 0
) -> dict[int, bytes]:
    """Return the bytes by their offset, for x [slots, n] and scales: mantissa and exponent of each slot.

    Args:
        counted, shift: the first ids that the sums have, and the shift of these without the exponent of the scale.
    """
    slots, count = x.shape
    mantissas, exponents = np.array(scales).T
    sums = sum_of_exponentials(x[:, :counted], mantissas, clamp_shift(shift - exponents)).tolist()
    results = b"".join(
        a.to_bytes(2, "little") + e.to_bytes(4, "little", signed=True)[:2] + total.to_bytes(4, "little")
        for (a, e), total in zip(scales, sums, strict=True)
    )
    order = [sorted(range(count), key=lambda at: (-line[at], at)) for line in x.tolist()]
    for rank in range(k):
        for slot in range(slots):
            present = rank < count
            logit = int(x[slot, order[slot][rank]]) if present else -(1 << 31)
            results += logit.to_bytes(4, "little", signed=True)
            results += (first + order[slot][rank] if present else 0).to_bytes(4, "little")
    if not rows:
        return {0: results}
    padded = np.zeros((count, next(lanes for lanes in (1, 2, 4, 8) if lanes >= slots)), "<i4")
    padded[:, :slots] = x.T
    return {4096: padded.tobytes(), 0: results}
