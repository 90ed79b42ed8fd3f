"""A tree of one shape, whatever the text: the one that is best if every guess is as good as guesses commonly are.

The k-th likeliest guess (k = 0, 1, ...) is taken to be right with probability ``SHARE * (1 - SHARE)**k`` at every depth:
each guess catches the same share of what the ones before it missed. The shape of n nodes is the n with the largest
products along their paths. Children by level: for 8 nodes 2 | 2 1 | 1 | 1, for 16 nodes 3 | 3 2 1 | 2 1 1 | 1 | 1 (zeros
left out): wide at the root, then chains below the likeliest nodes.

A guess that the drafter does not make leaves its place, and what would hang below it, empty. The shape depends on
nothing that was drawn, so that with drawn children the tree is an honest sample. One call of the drafter for each level.

Source: largest path products, Sequoia (2402.12374) and PPD (2405.18628); the constants are derived here.
"""

from __future__ import annotations

import heapq
from functools import lru_cache

import numpy as np

from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Limits, TokenTree
from edgedec.runtime.trees._growth import Growth

__all__ = ["SHARE", "create", "shape"]

SHARE = 0.6  # of what is still open, caught by each guess; first guesses of draft models and heads are right 50 to 70 %


@lru_cache(maxsize=64)
def shape(nodes: int, depth: int) -> tuple[tuple[int, ...], ...]:
    """The parents of each level's nodes, as places in the level above; the root's level is left out.

    Parameters:
        nodes: of the tree, its root included, at least 1.
        depth: levels below the root, at most.
    """
    levels: list[list[int]] = [[] for _ in range(depth)]
    waiting = [(-SHARE, 0, 0)] if depth else []  # (-value, level, the parent's place in the level above)
    for _ in range(nodes - 1):
        if not waiting:
            break
        value, level, parent = heapq.heappop(waiting)
        place = len(levels[level])
        levels[level].append(parent)
        heapq.heappush(waiting, (value * (1 - SHARE), level, parent))
        if level + 1 < depth:
            heapq.heappush(waiting, (value * SHARE, level + 1, place))
    return tuple(tuple(level) for level in levels if level)


class _Static:
    sizes_itself = False

    def __init__(self, rng: np.random.Generator | None) -> None:
        self._rng = rng

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> TokenTree:
        growth = Growth(draft, text, limits.nodes, self._rng)
        above = [0]  # nodes of the level above by place; -1: the drafter had no guess there
        for level in shape(limits.nodes, limits.depth):
            inner = [above[place] for place in sorted(set(level)) if above[place] >= 0]
            if not inner:
                break
            growth.expand(inner)
            here = []
            for place in level:
                found = above[place] >= 0 and growth.add(above[place]) is not None
                here.append(len(growth) - 1 if found else -1)
            above = here
        return growth.tree()


def create(rng: np.random.Generator | None = None) -> _Static:
    """Plug-in entry. ``rng``: draw the children from the draft; without it, take the likeliest."""
    return _Static(rng)
