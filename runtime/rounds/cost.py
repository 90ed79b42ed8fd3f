"""A cost model that learns the duration of passes during a run."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque

from edgedec.runtime.base.median import median
from edgedec.runtime.protocols import CostModel

__all__ = ["CostBeside", "ObservedCost"]

_SLOPE = 0.08  # additional time of each further node, relative to a pass of one node, while only one size was observed
_FIRST = 3  # passes of a size that are averaged with equal weights
_DRIFT = 8  # passes whose median is the drift; even, so that two alternating sizes count equally
# _LEARN and _MEAN are the weights of a new deviation in the logarithm of a size's time and in the mean of all deviations; a
# deviation counts up to _MOST. _LEARN is small, so that the shape changes more slowly than the drift.
_LEARN, _MEAN, _MOST = 1 / 32, 1 / 8, 0.5


class ObservedCost:
    """The duration of a pass: a shape (seconds by number of nodes) times a drift that all sizes share.

    The drift is the median, over the last passes, of observed time divided by the shape's time. A growing context or a busy
    machine slows all sizes down, including those that are not in use at the moment; without the drift, a run that always
    speculates would compare itself with plain passes of long ago. Between observed sizes, and beyond them, the shape is
    interpolated linearly. Before the first pass it is 0.0.

    A size learns by how much more it deviates from the drift than passes do on average. Some passes are far slower than the
    median and none is far faster, so that the average is above zero; with it the sizes in use would grow without end, and
    all others seem to cost nothing.

    Parameters:
        model: the shape, as a function of the numbers of nodes and of cached rows. None: the shape is observed, too.
    """

    def __init__(self, model: CostModel | None = None) -> None:
        self._model = model
        self._shape: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._sizes: list[int] = []
        self._drifts: deque[float] = deque(maxlen=_DRIFT)
        self._drift, self._mean = 1.0, 0.0  # the latter is the mean of the last deviations

    def observe(self, nodes: int, seconds: float, past: int = 0) -> None:
        """Learn that a pass of ``nodes`` rows over ``past`` cached rows took ``seconds``."""
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
        self._mean += _MEAN * (deviation - self._mean)
        weight = 1 / self._counts[nodes] if self._counts[nodes] <= _FIRST else _LEARN
        self._shape[nodes] = shape * math.exp(weight * (deviation - self._mean))

    def _follow(self, drift: float) -> None:
        self._drifts.append(drift)
        self._drift = median(self._drifts)

    def seconds(self, nodes: int, past: int) -> float:
        """Return the seconds of a pass. Without a model ``past`` is ignored: the drift reflects the recent contexts."""
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
            return shape[high]  # a falling line is not extended: a larger pass may be faster, but not without end
        return max(0.0, shape[low] + slope * (nodes - low))


class CostBeside:
    """The duration of a pass as one of several sequences sees it, whose rows are in one pass.

    Parameters:
        cost: the duration of whole passes.

    Members:
        rows: expected number of the other sequences' rows.
    """

    def __init__(self, cost: CostModel) -> None:
        self._cost, self.rows = cost, 0

    def seconds(self, nodes: int, past: int) -> float:
        """Return the seconds of a pass that has ``nodes`` rows of this sequence, over ``past`` cached rows."""
        return self._cost.seconds(nodes + self.rows, past)
