"""Seconds of a pass: as the target says beforehand, or as observed in this run."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque

from edgedec.runtime.protocols import CostModel

__all__ = ["ObservedCost"]

_SLOPE = 0.08  # of the seconds of one node, for each node more, where one size was seen only
_FIRST = 3  # passes of a size that are simply averaged
_DRIFT = 8  # passes whose median is the drift; an even number, so that of two sizes in turn neither is all of it
# How much of a deviation a size's own seconds take, and the most that counts, in logarithms: slowly against the drift.
_LEARN, _MOST = 1 / 32, 0.5


class ObservedCost:
    """A shape, seconds by size, times a drift that all sizes share, the median of the last passes.

    A context that grows or a machine that gets busy slows sizes that are not used just now as well; without the drift a
    run that always speculates would compare itself with plain passes of long ago. Between observed sizes and beyond them
    there is a straight line. 0.0 before the first pass.

    Parameters:
        model: is the shape, by size and past, if there is one; then only the drift is observed.
    """

    def __init__(self, model: CostModel | None = None) -> None:
        self._model = model
        self._shape: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._sizes: list[int] = []
        self._drifts: deque[float] = deque(maxlen=_DRIFT)
        self._drift = 1.0

    def observe(self, nodes: int, seconds: float, past: int = 0) -> None:
        seconds = max(1e-9, seconds)
        if self._model is not None:
            self._follow(seconds / max(1e-9, self._model.seconds(nodes, past)))
            return
        if nodes not in self._shape:
            self._shape[nodes], self._counts[nodes] = seconds / self._drift, 0
            self._sizes = sorted(self._shape)
        shape = self._shape[nodes]
        self._follow(seconds / shape)
        self._counts[nodes] += 1
        deviation = min(_MOST, max(-_MOST, math.log(seconds / (shape * self._drift))))
        weight = 1 / self._counts[nodes] if self._counts[nodes] <= _FIRST else _LEARN
        self._shape[nodes] = shape * math.exp(weight * deviation)

    def _follow(self, drift: float) -> None:
        self._drifts.append(drift)
        ordered = sorted(self._drifts)  # by hand: this runs once a pass, and ``statistics`` takes 20 microseconds
        self._drift = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2

    def seconds(self, nodes: int, past: int) -> float:
        """Without a model the past is not told apart: the last passes had almost the same, and the drift knows them."""
        if self._model is not None:
            return self._drift * self._model.seconds(nodes, past)
        if not self._sizes:
            return 0.0
        return self._drift * self._at(nodes)

    def _at(self, nodes: int) -> float:
        sizes, shape = self._sizes, self._shape
        if nodes in shape:
            return shape[nodes]
        if len(sizes) == 1:
            return shape[sizes[0]] * (1 + _SLOPE * (nodes - 1)) / (1 + _SLOPE * (sizes[0] - 1))
        at = min(max(1, bisect_left(sizes, nodes)), len(sizes) - 1)
        low, high = sizes[at - 1], sizes[at]
        slope = (shape[high] - shape[low]) / (high - low)
        if nodes > high and slope < 0:
            return shape[high]  # a larger pass may be faster, that is how kernels are; but not for ever
        return max(0.0, shape[low] + slope * (nodes - low))
