"""Seconds of a pass, as observed in this run."""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import median

__all__ = ["ObservedCost"]


class ObservedCost:
    """The median of the last passes of the nearest observed size; 0.0 before the first pass."""

    def __init__(self, window: int = 16) -> None:
        self._seen: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=window))

    def observe(self, nodes: int, seconds: float) -> None:
        self._seen[nodes].append(seconds)

    def seconds(self, nodes: int, past: int, *, variant: str = "full", batch: int = 1) -> float:
        if not self._seen:
            return 0.0
        nearest = min(self._seen, key=lambda size: (abs(size - nodes), size))
        return batch * median(self._seen[nearest])
