"""The selector of ``delayed``: the chance that the next guesses are right, from the draft's distribution and the past.

The measured acceptance a of a depth and rank is an average over many contexts. The draft's own probability q of the guess
tells which way this context differs from the average. The chance of the guess is

    logistic(logit(a) + bias + draft * (logit(q) - m)),

where m is the running mean of logit(q). So a draft that is wrong more often than another, or more certain, has the chances
that were measured, and only their differences come from q. q is the draft's probability without those of the siblings
before it. If children are drawn it is the expected probability of the child, because the child itself is not known when the
decision is made; then only the first child is estimated.

The weights were fitted by likelihood on an earlier embedded pair, at temperatures up to 1.2. The fit takes milliseconds,
after the texts are written: ``benchmarks/speculation/delayed_selector.py``.

Source: the selector of 2602.16994, which is a neural network that predicts the tokens of a round for each size; this form
is derived here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from edgedec.runtime.trees._growth import ChosenChildren, DrawnChildren

__all__ = ["CHOSEN", "DRAWN", "Selector", "Weights", "logit"]

_FARTHEST = 6.0  # largest logit of a probability, so that a certain draft may be wrong
_MEMORY = 64  # number of nodes that the running means cover


class Weights(NamedTuple):
    """The weights of one rank."""

    bias: float
    draft: float
    mean: float  # value of the running mean before the first node


# Weights of rank 0, 1 and so on; the last ones count for all further ranks. ``runtime/loop/delayed.cpp`` has those of CHOSEN
# and ``runtime/loop/policies.hpp`` their means, which tests compare.
CHOSEN = (Weights(-0.39, 0.65, 0.8), Weights(-0.02, 0.36, -1.05))
DRAWN = (Weights(-0.42, 0.45, 0.47),)


class Selector:
    """The estimates for one text."""

    def __init__(self) -> None:
        self._means: dict[tuple[bool, int], float] = {}  # (drawn, rank) -> running mean of logit(q)

    def deviations(self, children: ChosenChildren | DrawnChildren, count: int) -> list[float]:
        """Return logit(q) - m of the next ``count`` children at most, and let the means follow.

        A guess without probability, as of n-gram drafters, has none.
        """
        drawn = isinstance(children, DrawnChildren)
        weights = DRAWN if drawn else CHOSEN
        outlook = children.outlook(1 if drawn else count)
        result = []
        for rank, prob in enumerate([] if outlook == [1.0] else outlook):
            place, value = min(rank, len(weights) - 1), logit(prob)
            mean = self._means.get((drawn, place), weights[place].mean)
            result.append(value - mean)
            self._means[drawn, place] = mean + (value - mean) / _MEMORY
        return result

    def chances(self, children: ChosenChildren | DrawnChildren, measured: Sequence[float]) -> tuple[float, ...]:
        """Return the chance of each further child of a node, if those before it are wrong.

        Parameters:
            children: the node's candidates, none of which was taken yet.
            measured: the measured acceptance of each rank at the node's depth.
        """
        weights = DRAWN if isinstance(children, DrawnChildren) else CHOSEN
        result = list(measured)
        for rank, deviation in enumerate(self.deviations(children, len(measured))):
            weight = weights[min(rank, len(weights) - 1)]
            result[rank] = 1 / (1 + math.exp(-logit(measured[rank]) - weight.bias - weight.draft * deviation))
        return tuple(result)


def logit(prob: float) -> float:
    """Return the logarithm of the odds of a probability, at most ``_FARTHEST`` away from 0."""
    if prob <= 0:
        return -_FARTHEST
    return _FARTHEST if prob >= 1 else min(_FARTHEST, max(-_FARTHEST, math.log(prob / (1 - prob))))
