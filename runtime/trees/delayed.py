"""A stem with branches at its end: a single guess where guesses are usually right, and several where the text deviates.

The stem is a chain. At its end up to ``BRANCHES`` chains begin, which share the remaining nodes evenly. The length of the
stem follows from the acceptance measured at each depth: with a = accept[d], the k-th likeliest guess (k = 0, 1, ...) after
d tokens is assumed to be right with probability a * (1 - a)**k, and the stem with the most expected tokens is used; of
equal ones the longest. So the tree is a chain while every guess is right, and branches at the root if the first guess is
usually wrong.

The shape depends on earlier rounds only, so drawn children are an unbiased sample. Each level needs one call of the
drafter.

Source: delayed tree expansion, 2602.16994, for a branching point away from the root; the choice of the point is derived
here (the paper trains a selector).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Limits, TokenTree
from edgedec.runtime.trees._growth import Growth

__all__ = ["BRANCHES", "create", "expected", "plan"]

BRANCHES = 3  # maximum number of branches
_STEPS = 64  # steps of 1 to which acceptance is rounded, so that rounds share cached plans

Plan = tuple[int, tuple[int, ...]]  # nodes of the stem, nodes of each branch


def expected(shape: Plan, accept: Sequence[float]) -> float:
    """Return the expected number of accepted tokens of a stem and its branches."""
    stem, branches = shape
    total, stem_reach = 0.0, 1.0
    for depth in range(stem):
        stem_reach *= accept[depth]
        total += stem_reach
    for rank, length in enumerate(branches):
        reach = stem_reach * accept[stem] * (1 - accept[stem]) ** rank
        for depth in range(stem + 1, stem + length + 1):
            total += reach
            reach *= accept[depth] if depth < len(accept) else 0
    return total


def _shape(stem: int, nodes: int, depth: int) -> Plan:
    left, room = nodes - 1 - stem, depth - stem
    count = min(BRANCHES, left) if room else 0
    return stem, tuple(min(room, left // count + (rank < left % count)) for rank in range(count))


@lru_cache(maxsize=256)
def plan(nodes: int, depth: int, accept: tuple[float, ...]) -> Plan:
    """Return the stem and branches with the most expected tokens."""
    longest = min(depth, nodes - 1)
    return max((_shape(stem, nodes, depth) for stem in range(longest, -1, -1)), key=lambda it: expected(it, accept))


class _Delayed:
    sizes_itself = False

    def __init__(self, rng: np.random.Generator | None) -> None:
        self._rng = rng

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> TokenTree:
        growth = Growth(draft, text, limits.nodes, self._rng)
        rounded = tuple([round(rate * _STEPS) / _STEPS for rate in accept[: limits.depth].tolist()])
        stem, branches = plan(limits.nodes, limits.depth, rounded)
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


def create(rng: np.random.Generator | None = None) -> _Delayed:
    """Return the policy (entry point of the plug-in). With ``rng``, children are drawn; without it, the likeliest ones."""
    return _Delayed(rng)
