"""A stem with branches at its end: a single guess where guesses are usually right, and several where the text deviates.

The stem is a chain of L1 guesses. At its end K chains begin, at most ``BRANCHES``; each of the remaining nodes goes to the
chain where the text is most likely to reach it, which gives their lengths L2. The plan, which is L1, K and L2, is the one
with the most expected tokens. So the tree is a chain while every guess is right, and branches at the root if the first guess
is usually wrong and others are right instead.

The stem grows guess by guess, and before each one the plan is made again: a selector (``_selector``) knows the draft's
distribution at the end of the stem, and estimates the chances of the children there; for the nodes below, the acceptance
measured by depth and rank counts. The tree branches where that is worth more than another guess of the stem.

The decision to draw children of a node depends on earlier rounds, on earlier draws and on the distribution that they will be
drawn from, but not on their tokens, so drawn children are an unbiased sample. Each level needs one call of the drafter.

Source: delayed tree expansion, 2602.16994, for the shape and for a selector that is trained; there it chooses the plan
before the round. The estimate and the decision guess by guess are derived here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.loop.trees import DELAYED, GrowthRule, MeasuredGrowth
from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Drafting, Limits, TokenTree, TreeSize
from edgedec.runtime.trees._growth import Growth
from edgedec.runtime.trees._selector import Selector

__all__ = ["BRANCHES", "create", "expected", "plan"]

BRANCHES = 5  # maximum number of branches
_NODES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)  # numbers of nodes, and depths, that ``sizes`` considers
_STEPS = 64  # steps of 1 to which acceptance is rounded, so that rounds share cached plans

Plan = tuple[int, tuple[int, ...]]  # nodes of the stem, nodes of each branch


def expected(shape: Plan, accept: Sequence[Sequence[float]]) -> float:
    """Return the expected number of accepted tokens of a stem and its branches, with ``accept`` as in ``TreePolicy``."""
    total, reach = 0.0, 1.0
    for depth in range(shape[0]):
        reach *= accept[depth][0]
        total += reach
    return total + reach * _below(shape, accept)


def _below(shape: Plan, accept: Sequence[Sequence[float]]) -> float:
    """Return the expected number of accepted tokens after the stem if the whole stem is accepted."""
    stem, branches = shape
    total, left = 0.0, 1.0
    for rank, length in enumerate(branches):
        rate = accept[stem][min(rank, len(accept[stem]) - 1)]
        reach = left * rate
        left *= 1 - rate
        for depth in range(stem + 1, stem + length + 1):
            total += reach
            reach *= accept[depth][0] if depth < len(accept) else 0
    return total


def _shape(stem: int, nodes: int, depth: int, accept: Sequence[Sequence[float]]) -> Plan:
    """Return the best plan with this stem: each node goes to the branch where the text is most likely to reach it."""
    branches: list[int] = []
    if stem == depth:
        return stem, ()
    rates = accept[stem]
    left = 1.0  # probability that all branches so far are wrong
    values = [rates[0]]  # value of the next node of each branch; the last branch is still empty
    for _ in range(nodes - 1 - stem):
        branch = max(range(len(values)), key=values.__getitem__)
        if not values[branch]:
            break
        if branch == len(branches):
            branches.append(0)
            left *= 1 - rates[min(branch, len(rates) - 1)]
            if len(branches) < BRANCHES:
                values.append(left * rates[min(branch + 1, len(rates) - 1)])
        branches[branch] += 1
        below = stem + branches[branch]
        values[branch] *= accept[below][0] if below < depth else 0.0
    return stem, tuple(branches)


@lru_cache(maxsize=256)
def plan(nodes: int, depth: int, accept: tuple[tuple[float, ...], ...]) -> Plan:
    """Return the stem and branches with the most expected tokens, without a selector."""
    longest = min(depth, nodes - 1)
    shapes = [_shape(stem, nodes, depth, accept) for stem in range(longest, -1, -1)]
    return max(shapes, key=lambda shape: expected(shape, accept))


@lru_cache(maxsize=256)
def _onward(nodes: int, depth: int, accept: tuple[tuple[float, ...], ...]) -> list[float]:
    """Return the most expected tokens after a stem of each length, if the whole stem is accepted."""
    longest = min(depth, nodes - 1)
    best = [0.0] * (longest + 1)
    for stem in range(longest - 1, -1, -1):
        branch = _below(_shape(stem, nodes, depth, accept), accept)
        best[stem] = max(branch, accept[stem][0] * (1 + best[stem + 1]))
    return best


class _Delayed(CompiledParts[GrowthRule]):
    def __init__(self, rng: np.random.Generator | None, selector: Selector | None) -> None:
        self._rng, self._selector = rng, selector
        self._compiled = MeasuredGrowth(DELAYED, remembers=selector is not None)

    @property
    def compiled(self) -> GrowthRule | None:
        """The growth in the compiled loop, which has a selector of its own; None if children are drawn."""
        return self._compiled if self._rng is None else None

    def sizes(self, limits: Limits, accept: F32) -> list[TreeSize]:
        sizes, rates = [], _rounded(accept, limits.depth)
        for nodes in sorted({min(nodes, limits.nodes) for nodes in _NODES}):
            for depth in sorted({min(depth, limits.depth, nodes - 1) for depth in _NODES}):
                shape = plan(nodes, depth, rates)
                stem, branches = shape
                levels = stem + max(branches, default=0)
                sizes.append(TreeSize(nodes=1 + stem + sum(branches), depth=levels, tokens=1 + expected(shape, rates)))
        return sizes

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
        growth = Growth(draft, text, limits.nodes, self._rng)
        rates = _rounded(accept, limits.depth)
        onward = _onward(limits.nodes, limits.depth, rates)
        stem, branches = 0, list[int]()
        while stem < len(onward) - 1:
            yield from growth.expand([stem])
            if stem not in growth.pending:
                return growth.tree()
            here = rates
            if self._selector is not None:
                row = self._selector.chances(growth.pending[stem], rates[stem])
                here = (*rates[:stem], row, *rates[stem + 1 :])
            shape = _shape(stem, limits.nodes, limits.depth, here)
            if len(shape[1]) > 1 and _below(shape, here) > here[stem][0] * (1 + onward[stem + 1]):
                branches = [*shape[1]]
                break
            growth.add(stem)
            stem += 1
        ends = [stem] * len(branches)  # last node of each branch; -1: the drafter had no guess after it
        for level in range(max(branches, default=0)):
            growing = [rank for rank, length in enumerate(branches) if length > level and ends[rank] >= 0]
            if not growing:
                break
            if level:
                yield from growth.expand(sorted({ends[rank] for rank in growing}))
            for rank in growing:
                ends[rank] = len(growth) - 1 if growth.add(ends[rank]) is not None else -1
        return growth.tree()


def _rounded(accept: F32, depth: int) -> tuple[tuple[float, ...], ...]:
    """Return the acceptance of the ranks that are used, in steps of 1 / ``_STEPS``."""
    return tuple(map(tuple, (np.round(accept[:depth, :BRANCHES] * _STEPS) / _STEPS).tolist()))


def create(rng: np.random.Generator | None = None, *, selects: bool = True) -> _Delayed:
    """Return the policy (entry point of the plug-in). With ``rng``, children are drawn; without it, the likeliest ones.

    Without ``selects`` the branching point follows from the measured acceptance alone.
    """
    return _Delayed(rng, Selector() if selects else None)
