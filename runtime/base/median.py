"""Return the median of a few floats.

``statistics.median`` takes 20 microseconds, which a round of a small model would notice, and its import takes 5 milliseconds
of every start, because it needs fractions and decimals.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["median"]


def median(values: Iterable[float]) -> float:
    """Return the median: the middle value, or the mean of the two middle ones.

    Raises:
        ValueError: there are no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values have no median")
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
