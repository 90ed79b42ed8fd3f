"""A stem with branches at its end: a single guess where guesses are usually right, and several where the text deviates.

The stem is a chain. At its end up to ``BRANCHES`` chains begin; each of the remaining nodes goes to the chain where the text
is most likely to reach it. The length of the stem follows from the acceptance measured by depth and rank: the stem with the
most expected tokens is used, of equal ones the longest. So the tree is a chain while every guess is right, and branches at
the root if the first guess is usually wrong and others are right instead.

The shape depends on earlier rounds only, so drawn children are an unbiased sample. Each level needs one call of the
drafter.

Source: delayed tree expansion, 2602.16994, for a branching point away from the root; the choice of the point is derived
here (the paper trains a selector).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Limits, TokenTree, TreeSize
from edgedec.runtime.trees._growth import Growth

__all__ = ["BRANCHES", "create", "expected", "plan"]

BRANCHES = 3  # maximum number of branches
_NODES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)  # numbers of nodes, and depths, that ``sizes`` considers
_STEPS = 64  # steps of 1 to which acceptance is rounded, so that rounds share cached plans

Plan = tuple[int, tuple[int, ...]]  # nodes of the stem, nodes of each branch


def expected(shape: Plan, accept: Sequence[Sequence[float]]) -> float:
    """Return the expected number of accepted tokens of a stem and its branches, with ``accept`` as in ``TreePolicy``."""
    stem, branches = shape
    total, stem_reach = 0.0, 1.0
    for depth in range(stem):
        stem_reach *= accept[depth][0]
        total += stem_reach
    for rank, length in enumerate(branches):
        rate = accept[stem][min(rank, len(accept[stem]) - 1)]
        reach = stem_reach * rate
        stem_reach *= 1 - rate
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
    """Return the stem and branches with the most expected tokens."""
    longest = min(depth, nodes - 1)
    shapes = [_shape(stem, nodes, depth, accept) for stem in range(longest, -1, -1)]
    return max(shapes, key=lambda it: expected(it, accept))


class _Delayed:
    def __init__(self, rng: np.random.Generator | None) -> None:
        self._rng = rng

    def sizes(self, limits: Limits, accept: F32) -> list[TreeSize]:
        sizes, rates = [], _rounded(accept, limits.depth)
        for nodes in sorted({min(nodes, limits.nodes) for nodes in _NODES}):
            for depth in sorted({min(depth, limits.depth, nodes - 1) for depth in _NODES}):
                shape = plan(nodes, depth, rates)
                stem, branches = shape
                levels = stem + max(branches, default=0)
                sizes.append(TreeSize(nodes=1 + stem + sum(branches), depth=levels, tokens=1 + expected(shape, rates)))
        return sizes

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> TokenTree:
        growth = Growth(draft, text, limits.nodes, self._rng)
        stem, branches = plan(limits.nodes, limits.depth, _rounded(accept, limits.depth))
        for node in range(stem):
            growth.expand([node])
            if growth.add(node) is None:
                return growth.tree()
        ends = [stem] * len(branches)  # last node of each branch; -1: the drafter had no guess after it
        for level in range(max(branches, default=0)):
            growing = [rank for rank, length in enumerate(branches) if length > level and ends[rank] >= 0]
            if not growing:
                break
            growth.expand(sorted({ends[rank] for rank in growing}))
            for rank in growing:
                ends[rank] = len(growth) - 1 if growth.add(ends[rank]) is not None else -1
        return growth.tree()


def _rounded(accept: F32, depth: int) -> tuple[tuple[float, ...], ...]:
    """Return the acceptance of the ranks that are used, in steps of 1 / ``_STEPS``."""
    return tuple(map(tuple, (np.round(accept[:depth, :BRANCHES] * _STEPS) / _STEPS).tolist()))


def create(rng: np.random.Generator | None = None) -> _Delayed:
    """Return the policy (entry point of the plug-in). With ``rng``, children are drawn; without it, the likeliest ones."""
    return _Delayed(rng)
