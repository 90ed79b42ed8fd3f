"""The tree that should give the most tokens per second on this machine, now; its root alone if none pays.

Size = argmax over N of (1 + E[accepted](N)) / (T(N, past) + D(N)). T is the cost model's; E is the sum of the values of
the N best nodes (best-first, as in ``dynamic``); D is the time that drafting took so far in this round, and for calls yet
to come the median of what a call took in the rounds before, this policy's own work included.

**E.** A node's value is its parent's times its draft probability times a factor of its depth that turns the draft's
confidence into what happened: accept[d], the measured share of paths at depth d that went on, by what the draft's
probabilities promised for the same rounds. A certain guess (probability 1) is thus worth accept[d], and probabilities that
are right are taken as they are.

**When to stop drafting.** A call is made only if some number of calls k and of nodes m could raise the rate above the
best one within reach without it. No node to come is worth more than the best one, g; i levels below the nodes at hand the
nodes are together worth at most the sum of these times the factors on the way, S_i. So k calls and m >= k nodes add at
most min(m * g, waiting + S_1 + ... + S_k). For a chain of certain guesses the bound is the truth, and where calls are free
drafting never stops too soon: in both cases the size is the argmax. Then the tree is cut to it. A round in which not even
the first call pays costs no draft at all.

Drawn children are never cut, since that would let a child's own token decide whether it stays. There the same bound is
asked before each child is drawn, with sum(R^2) / sum(R) for its probability, and growth ends at the first no: a stopping
time, which leaves the children an honest sample.

Source: argmax of acceptance by measured latency, PPD (2405.18628); DySpec (2410.11744) for the order; bound and
calibration derived here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Limits, TokenTree
from edgedec.runtime.trees._best_first import BestFirst
from edgedec.runtime.trees._growth import Chosen, Drawn, Growth

__all__ = ["create"]

_MEMORY = 0.95  # of what the draft promised, from round to round
_CALLS = 9  # rounds whose cost of a call is remembered
_FORGIVE = 0.995  # of the cost of a call, each round without one: one bad measurement must not end speculation for good
_REFRESH = 8  # rounds between two looks at the cost model


class _Search(BestFirst):
    """A best-first growth that stops where going on cannot pay.

    Parameters:
        times: seconds of a pass by number of nodes, [nodes + 1]; the first is not used.
        call_seconds: what a call of the draft is expected to take.
        spent: seconds since this round's drafting began.
        cuts: the end will be cut off, so only calls cost anything.
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
        self._floor = list(times)  # of this and all larger sizes: measured times need not rise with the size
        for size in range(len(times) - 2, 0, -1):
            self._floor[size] = min(self._floor[size], self._floor[size + 1])
        self._peak, self._peak_total = 1, 1.0  # the best size so far, and its 1 + E
        self._counted, self._total = 1, 1.0  # the nodes in 1 + E, and it

    def rank(self, node: int, deal: Chosen | Drawn) -> float:
        share = self.factor[self.growth.depths[node]] * deal.hope
        return self.values[node] * share if share < 1 else self.values[node]

    def goes_on(self, value: float, node: int) -> bool:
        spent, known = self._spent(), self.known
        best = self._best(spent)
        seconds = self._times[len(self.values) + 1] + spent
        if known[node]:
            enough = (self._total + value) / seconds
        else:  # one call for one node, against the best node that needs none
            if len(self.heap) > 1:
                other = max([-key for key, _, at in self.heap if known[at]], default=0.0)
                best = max(best, (self._total + other) / seconds)
            enough = (self._total + value) / (seconds + self._call_seconds)
        return enough > best or self._could_pay(value, best, spent, calls=not known[node])

    def size(self) -> int:
        """The number of nodes with the best rate, the smallest of equal ones."""
        spent, total, found, best = self._spent(), 0.0, 1, 0.0
        for at, value in enumerate(self.values):
            total += value
            rate = total / (self._times[at + 1] + spent)
            if rate > best:
                found, best = at + 1, rate
        return found

    def _best(self, spent: float) -> float:
        """The best rate so far, after counting the nodes that came since."""
        peak = self._peak_total / (self._times[self._peak] + spent)
        while self._counted < len(self.values):
            self._total += self.values[self._counted]
            self._counted += 1
            rate = self._total / (self._times[self._counted] + spent)
            if rate > peak:
                peak, self._peak, self._peak_total = rate, self._counted, self._total
        return peak

    def _could_pay(self, value: float, best: float, spent: float, *, calls: bool) -> bool:
        """Whether the bound of the module's text exceeds every rate that needs no further call."""
        have, total = len(self.values), self._total
        left = self.nodes - have
        if calls:
            for at, candidate in enumerate(
                sorted((-key for key, _, node in self.heap if self.known[node]), reverse=True)
            ):
                if at < left:
                    total += candidate
                    best = max(best, total / (self._times[have + at + 1] + spent))
        mass = [0.0] * (self.depth + 1)  # by depth: of nodes without a distribution, and of children that could come
        for _, _, node in self.heap:
            depth = self.growth.depths[node]
            if self.known[node]:
                mass[depth + 1] += self.values[node] * self.factor[depth] * self.growth.deals[node].rest
            else:
                mass[depth] += self.values[node]
        below = sum(self.values[node] for _, _, node in self.heap if not self.known[node])
        reach = sum(mass) - below  # without a call
        for made in range(min(left, self.depth) + 1):
            if made:
                mass = [0.0, *(part * factor for part, factor in zip(mass, self.factor, strict=False))]
                reach += sum(mass)
            if made or not calls:
                cost = spent + made * self._call_seconds
                for nodes in range(max(made, 1), left + 1):
                    gain = min(nodes * value, reach)
                    if (self._total + gain) / (self._floor[have + nodes] + cost) > best:
                        return True
                    if gain == reach:
                        break  # more nodes bring no more
        return False


class _Hardware:
    sizes_itself = True

    def __init__(self, rng: np.random.Generator | None, clock: Callable[[], float]) -> None:
        self._rng, self._clock = rng, clock
        self._calls: deque[float] = deque(maxlen=_CALLS)  # seconds of a call, by round
        self._forgiven = 1.0
        self._promised: list[float] = []  # by depth: what the draft promised, and how often it was asked to
        self._asked: list[float] = []
        self._times: list[float] = []
        self._cost: CostModel | None = None
        self._rounds = 0

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> TokenTree:
        start = self._clock()
        growth = Growth(draft, text, limits.nodes, self._rng)
        factor = self._factors(accept, limits.depth)
        times = self._seconds(cost, limits.nodes, len(text) - 1)
        if not times[1] > 0:  # nothing was measured yet
            search = BestFirst(growth, limits.nodes, limits.depth, factor)
            search.run()
        else:
            search = counted = _Search(
                growth,
                limits,
                factor,
                times=times,
                call_seconds=self._forgiven * median(self._calls) if self._calls else 0.0,
                spent=lambda: self._clock() - start,
                cuts=self._rng is None,
            )
            search.run()
            if self._rng is None:
                growth.cut(counted.size())
        self._learn(search, self._clock() - start)
        return growth.tree()

    def _factors(self, accept: F32, depth: int) -> list[float]:
        while len(self._asked) < depth:
            self._asked.append(0.0)
            self._promised.append(0.0)
        return [
            rate * asked / promised if promised > 0 else rate
            for rate, asked, promised in zip(accept.tolist(), self._asked, self._promised, strict=False)
        ]

    def _seconds(self, cost: CostModel, nodes: int, past: int) -> list[float]:
        """T by number of nodes, looked up now and then: a measured cost model may take microseconds for each answer."""
        fresh = self._cost is cost and len(self._times) > nodes
        if not fresh or self._rounds < _REFRESH or self._rounds % _REFRESH == 0:
            self._times = [0.0, *(cost.seconds(size, past) for size in range(1, nodes + 1))]
            self._cost = cost
        self._rounds += 1
        return self._times[: nodes + 1]

    def _learn(self, search: BestFirst, seconds: float) -> None:
        growth = search.growth
        if not growth.calls:
            self._forgiven *= _FORGIVE
            return
        self._forgiven = 1.0
        self._calls.append(seconds / growth.calls)
        self._promised = [_MEMORY * sum_ for sum_ in self._promised]
        self._asked = [_MEMORY * sum_ for sum_ in self._asked]
        parents, depths, seen = growth.parents, growth.depths, set[int]()
        for node in range(1, len(growth)):
            parent = parents[node]
            depth = depths[parent]
            self._promised[depth] += search.values[parent] * search.probs[node]
            if parent not in seen:
                seen.add(parent)
                self._asked[depth] += search.values[parent]


def create(rng: np.random.Generator | None = None, clock: Callable[[], float] = time.perf_counter) -> _Hardware:
    """Plug-in entry.

    Parameters:
        rng: draw the children from the draft; without it, take the likeliest.
        clock: seconds, for the time that drafting takes.
    """
    return _Hardware(rng, clock)
