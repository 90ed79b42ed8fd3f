"""The tree with the highest expected number of tokens per second on this machine; the root alone if no guess pays.

The size is the N that maximizes (1 + E[accepted](N)) / (T(N, past) + D(N)). T is the duration of a pass by the cost model.
E is the sum of the values of the N best nodes (best-first, as in ``dynamic``). D is the time that drafting took so far in
this round; for further calls, it is the median duration of a call in earlier rounds, including this policy's own work.

**E.** The value of a node is its parent's value times its draft probability times a factor of its depth, which calibrates
the draft's confidence: accept[d, 0], the measured acceptance of first guesses at depth d, divided by what the draft's
probabilities of first guesses predicted for the same rounds. So a guess of probability 1 has the factor accept[d], and
probabilities that prove right are used unchanged.

**When to stop drafting.** A call is made only if some number of calls k and of nodes m could raise the rate above the best
rate that needs no call. No further node has a larger value than the best candidate, g. The nodes i levels below the
present ones have, together, at most the sum of the present ones' values times the factors of the levels between, S_i.
Therefore k calls and m >= k nodes add at most min(m * g, waiting + S_1 + ... + S_k), where "waiting" is the sum over
children that need no call. For a chain of guesses of probability 1 the bound is exact, and where calls cost nothing
drafting never stops too early: in both cases the size is the argmax. Then the tree is cut to this size. A round in which
not even the first call pays makes no call of the draft.

Drawn children are never cut, because their own tokens would then decide whether they stay. Instead the bound is evaluated
before each child is drawn, with sum(R^2) / sum(R) as its probability, and growth ends as soon as it does not pay. This is
a stopping time, so the children remain an unbiased sample.

Source: argmax of acceptance over measured latency, PPD (2405.18628); order, DySpec (2410.11744); the bound and the
calibration are derived here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import numpy as np

from edgedec.runtime.base.median import median
from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.loop.trees import HARDWARE, GrowthRule, MeasuredGrowth
from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Drafting, Limits, TokenTree, TreeSize
from edgedec.runtime.trees._best_first import BestFirst
from edgedec.runtime.trees._growth import ChosenChildren, DrawnChildren, Growth

__all__ = ["create"]

_MEMORY = 0.95  # decay of the sums of predicted acceptance, per round
_CALLS = 9  # rounds whose duration of a call is remembered
# Decay of the expected duration of a call, per round without a call, so that one bad measurement does not end speculation.
_FORGIVE = 0.995
_REFRESH = 8  # rounds between two evaluations of the cost model


class _Search(BestFirst):
    """A best-first growth that stops once further growth cannot pay.

    Parameters:
        growth: the tree to grow.
        limits: limits of the tree.
        factor: factors for the draft's probabilities by depth of the parent.
        times: seconds of a pass by number of nodes, [nodes + 1]; the first entry is not used.
        call_seconds: expected duration of a call of the draft.
        spent: returns the seconds since drafting began in this round.
        cuts: the tree will be cut to its best size, so that only calls cost time.
    """

    def __init__(
        self,
        growth: Growth,
        limits: Limits,
        factor: Sequence[float],
        *,
        times: Sequence[float],
        call_seconds: float,
        spent: Callable[[], float],
        cuts: bool,
    ) -> None:
        super().__init__(growth, limits.nodes, limits.depth, factor)
        self._times, self._call_seconds, self._spent = times, call_seconds, spent
        self.asks_for_children = not cuts
        # Minimum over this and all larger sizes, because measured times need not increase with the size.
        self._floor = list(times)
        for size in range(len(times) - 2, 0, -1):
            self._floor[size] = min(self._floor[size], self._floor[size + 1])
        self._peak, self._peak_total = 1, 1.0  # the best size so far, and its 1 + E
        self._counted, self._total = 1, 1.0  # number of nodes in the running sum 1 + E, and the sum

    def rank(self, node: int, children: ChosenChildren | DrawnChildren) -> float:
        """Return the value of a node's next child with its expected probability."""
        share = self.factor[self.growth.depths[node]] * children.expected
        return self.values[node] * share if share < 1 else self.values[node]

    def goes_on(self, value: float, node: int) -> bool:
        """Return whether another child of ``node``, or a call for its distribution, could raise the rate."""
        spent, known = self._spent(), self.known
        best = self._best(spent)
        seconds = self._times[len(self.values) + 1] + spent
        if known[node]:
            rate = (self._total + value) / seconds
        else:  # compare one call for one node with the best node that needs no call
            if len(self.heap) > 1:
                other = max([-key for key, _, candidate in self.heap if known[candidate]], default=0.0)
                best = max(best, (self._total + other) / seconds)
            rate = (self._total + value) / (seconds + self._call_seconds)
        return rate > best or self._could_pay(value, best, spent, calls=not known[node])

    def size(self) -> int:
        """Return the number of nodes with the best rate; of equal rates, the smallest number."""
        spent, total, best_size, best_rate = self._spent(), 0.0, 1, 0.0
        for size, value in enumerate(self.values, start=1):
            total += value
            rate = total / (self._times[size] + spent)
            if rate > best_rate:
                best_size, best_rate = size, rate
        return best_size

    def _best(self, spent: float) -> float:
        """Return the best rate so far, after the nodes added since the last call are counted."""
        peak = self._peak_total / (self._times[self._peak] + spent)
        while self._counted < len(self.values):
            self._total += self.values[self._counted]
            self._counted += 1
            rate = self._total / (self._times[self._counted] + spent)
            if rate > peak:
                peak, self._peak, self._peak_total = rate, self._counted, self._total
        return peak

    def _could_pay(self, value: float, best: float, spent: float, *, calls: bool) -> bool:
        """Return whether the bound of the module's docstring exceeds every rate that needs no further call."""
        size, total = len(self.values), self._total
        left = self.nodes - size
        if calls:
            for at, candidate in enumerate(
                sorted((-key for key, _, node in self.heap if self.known[node]), reverse=True)
            ):
                if at < left:
                    total += candidate
                    best = max(best, total / (self._times[size + at + 1] + spent))
        # Sum of values by depth, of nodes without a distribution and of candidates that need no call.
        mass = [0.0] * (self.depth + 1)
        for _, _, node in self.heap:
            depth = self.growth.depths[node]
            if self.known[node]:
                mass[depth + 1] += self.values[node] * self.factor[depth] * self.growth.pending[node].rest
            else:
                mass[depth] += self.values[node]
        unexpanded = _total([self.values[node] for _, _, node in self.heap if not self.known[node]])
        reach = _total(mass) - unexpanded  # gain that is possible without a call
        for count in range(min(left, self.depth) + 1):  # number of calls
            if count:
                mass = [0.0, *(part * factor for part, factor in zip(mass, self.factor, strict=False))]
                reach += _total(mass)
            if count or not calls:
                cost = spent + count * self._call_seconds
                for nodes in range(max(count, 1), left + 1):
                    gain = min(nodes * value, reach)
                    if (self._total + gain) / (self._floor[size + nodes] + cost) > best:
                        return True
                    if gain == reach:
                        break  # more nodes add nothing
        return False


def _total(values: Sequence[float]) -> float:
    """Return the sum from the first to the last, whose bits do not depend on Python's version as those of ``sum`` do."""
    return reduce(add, values, 0.0)


class _Hardware(CompiledParts[GrowthRule]):
    def __init__(self, rng: np.random.Generator | None, clock: Callable[[], float] | None) -> None:
        self._rng, self._clock = rng, clock or time.perf_counter
        self._compiled = MeasuredGrowth(HARDWARE, prices=True, clock=clock)
        self._calls: deque[float] = deque(maxlen=_CALLS)  # mean seconds of a call, by round
        self._decay = 1.0  # factor for the expected duration of a call
        # By depth: sum of the predicted values of first guesses, and sum of the values of their parents.
        self._predicted: list[float] = []
        self._parent_values: list[float] = []
        self._times: list[float] = []
        self._cost: CostModel | None = None
        self._rounds = 0

    def sizes(self, limits: Limits, accept: F32) -> tuple[TreeSize, ...]:
        """Return no sizes, because ``grow`` chooses the size."""
        return ()

    @property
    def compiled(self) -> GrowthRule | None:
        """The growth in the compiled loop, which measures by itself; None if children are drawn."""
        return self._compiled if self._rng is None else None

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
        start = self._clock()
        growth = Growth(draft, text, limits.nodes, self._rng)
        factor = self._factors(accept, limits.depth)
        times = self._seconds(cost, limits.nodes, len(text) - 1)
        if not times[1] > 0:  # the cost model knows nothing yet
            search = BestFirst(growth, limits.nodes, limits.depth, factor)
            yield from search.run()
        else:
            search = counted = _Search(
                growth,
                limits,
                factor,
                times=times,
                call_seconds=self._decay * median(self._calls) if self._calls else 0.0,
                spent=lambda: self._clock() - start,
                cuts=self._rng is None,
            )
            yield from search.run()
            if self._rng is None:
                growth.cut(counted.size())
        self._learn(search, self._clock() - start)
        return growth.tree()

    def _factors(self, accept: F32, depth: int) -> list[float]:
        """Return the calibration factors by depth of the parent: measured over predicted acceptance."""
        while len(self._parent_values) < depth:
            self._parent_values.append(0.0)
            self._predicted.append(0.0)
        return [
            rate * parents / predicted if predicted > 0 else rate
            for rate, parents, predicted in zip(
                accept[:, 0].tolist(), self._parent_values, self._predicted, strict=False
            )
        ]

    def _seconds(self, cost: CostModel, nodes: int, past: int) -> list[float]:
        """Return T by number of nodes. It is refreshed every ``_REFRESH`` rounds, because a cost model takes time, too."""
        fresh = self._cost is cost and len(self._times) > nodes
        if not fresh or self._rounds < _REFRESH or self._rounds % _REFRESH == 0:
            self._times = [0.0, *(cost.seconds(size, past) for size in range(1, nodes + 1))]
            self._cost = cost
        self._rounds += 1
        return self._times[: nodes + 1]

    def _learn(self, search: BestFirst, seconds: float) -> None:
        """Learn the duration of a call and the acceptance that the draft predicted for this round's tree."""
        growth = search.growth
        if not growth.calls:
            self._decay *= _FORGIVE
            return
        self._decay = 1.0
        self._calls.append(seconds / growth.calls)
        self._predicted = [_MEMORY * sum_ for sum_ in self._predicted]
        self._parent_values = [_MEMORY * sum_ for sum_ in self._parent_values]
        parents, depths, seen = growth.parents, growth.depths, set[int]()
        for node in range(1, len(growth)):
            parent = parents[node]
            depth = depths[parent]
            if parent not in seen:  # the first guess, whose acceptance was measured by itself
                seen.add(parent)
                self._predicted[depth] += search.values[parent] * search.probs[node]
                self._parent_values[depth] += search.values[parent]


def create(rng: np.random.Generator | None = None, clock: Callable[[], float] | None = None) -> _Hardware:
    """Return the policy (entry point of the plug-in).

    Parameters:
        rng: generator that draws the children; None takes the likeliest tokens.
        clock: returns seconds, to measure drafting; None: the system's clock.
    """
    return _Hardware(rng, clock)
