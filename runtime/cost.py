"""Seconds of a pass, as observed in this run."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from statistics import median

__all__ = ["ObservedCost"]

_SLOPE = 0.08  # of the seconds of one node, for each node more, where no larger pass was seen yet


class ObservedCost:
    """The median of the last passes of a size; between observed sizes and beyond them a straight line.

    0.0 before the first pass. The past is not told apart: the last passes had almost the same.
    """

    def __init__(self, window: int = 9) -> None:
        self._window = window
        self._seen: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._sizes: list[int] = []

    def observe(self, nodes: int, seconds: float) -> None:
        if nodes not in self._seen:
            self._seen[nodes] = deque(maxlen=self._window)
            self._sizes = sorted(self._seen)
        self._seen[nodes].append(seconds)
        self._medians[nodes] = median(self._seen[nodes])

    def seconds(self, nodes: int, past: int, *, variant: str = "full", batch: int = 1) -> float:
        if not self._sizes:
            return 0.0
        return batch * self._at(nodes)

    def _at(self, nodes: int) -> float:
        sizes, medians = self._sizes, self._medians
        if nodes in medians:
            return medians[nodes]
        at = bisect_left(sizes, nodes)
        if at == 0:  # smaller than all: no cheaper than a straight line to nothing says
            return medians[sizes[0]] * (1 + _SLOPE * (nodes - 1)) / (1 + _SLOPE * (sizes[0] - 1))
        low = sizes[at - 1]
        if at == len(sizes):
            return medians[low] * (1 + _SLOPE * (nodes - 1)) / (1 + _SLOPE * (low - 1))
        high = sizes[at]
        share = (nodes - low) / (high - low)
        return medians[low] + share * (medians[high] - medians[low])
