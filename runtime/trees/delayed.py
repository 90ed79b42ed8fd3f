"""A stem first, branches after it: one guess at a time where guesses are good, several where the text parts from them.

The stem is a chain. From its end ``BRANCHES`` chains go on, as long as the node budget allows, the first one longest.
How long the stem is follows from the acceptance measured by position: with a = accept[d], a k-th guess after d tokens
is taken to be right with probability a * (1 - a)**k, and the stem is the one with the most expected tokens; of equal
ones the longest. So it is a plain chain while every guess is right, and shrinks to nothing where the first one fails.

The shape rests on earlier rounds alone, so drawn children are an honest sample. One call of the drafter for each level.

Source: delayed tree expansion, 2602.16994, for a branching point away from the root; the choice of it is derived here
(there: a trained selector).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Limits, TokenTree
from edgedec.runtime.trees._growth import Growth

__all__ = ["BRANCHES", "create", "expected", "plan"]

BRANCHES = 3
_STEPS = 64  # acceptance is rounded to so many steps, so that a plan is made once and not every round

Plan = tuple[int, tuple[int, ...]]  # nodes of the stem, nodes of each branch


def expected(shape: Plan, accept: Sequence[float]) -> float:
    """Accepted tokens to be expected of a stem and its branches."""
    stem, branches = shape
    total, come = 0.0, 1.0
    for depth in range(stem):
        come *= accept[depth]
        total += come
    for rank, length in enumerate(branches):
        reach = come * accept[stem] * (1 - accept[stem]) ** rank
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
    """The stem and branches with the most expected tokens."""
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
        ends = [stem] * len(branches)  # where each branch has come to
        for level in range(max(branches, default=0)):
            going = [rank for rank, length in enumerate(branches) if length > level and ends[rank] >= 0]
            if not going:
                break
            growth.expand(sorted({ends[rank] for rank in going}))
            for rank in going:
                ends[rank] = len(growth) - 1 if growth.add(ends[rank]) is not None else -1
        return growth.tree()


def create(rng: np.random.Generator | None = None) -> _Delayed:
    """Plug-in entry. ``rng``: draw the children from the draft; without it, take the likeliest."""
    return _Delayed(rng)
