"""A tree of fixed shape, the best one if every guess is right with a typical probability.

The k-th likeliest guess (k = 0, 1, ...) is assumed to be right with probability ``SHARE * (1 - SHARE)**k`` at every depth:
each guess catches the same share of the cases that the ones before it missed. The shape of n nodes consists of the n nodes
with the largest products along their paths. Numbers of children by level, without zeros: 2 | 2 1 | 1 | 1 for 8 nodes and
3 | 3 2 1 | 2 1 1 | 1 | 1 for 16 nodes: wide at the root, then chains below the likeliest nodes.

If the drafter does not make a guess, its place and the places below stay empty. The shape does not depend on drawn tokens,
so that drawn children are an unbiased sample. Each level needs one call of the drafter.

Source: largest path products, Sequoia (2402.12374) and PPD (2405.18628); the constants are derived here.
"""

from __future__ import annotations

import heapq
from functools import lru_cache

import numpy as np

from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Limits, TokenTree
from edgedec.runtime.trees._growth import Growth

__all__ = ["SHARE", "create", "shape"]

# Probability that a guess is right if all likelier ones are wrong. First guesses of draft models are right 50 to 70 % of
# the time.
SHARE = 0.6


@lru_cache(maxsize=64)
def shape(nodes: int, depth: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each level below the root, the parents of its nodes as indices into the level above.

    Parameters:
        nodes: number of nodes, at least 1, including the root.
        depth: maximum number of levels below the root.
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
        above = [0]  # nodes of the level above; -1: the drafter had no guess for this place
        for level in shape(limits.nodes, limits.depth):
            inner = [above[place] for place in sorted(set(level)) if above[place] >= 0]
            if not inner:
                break
            growth.expand(inner)
            here = []
            for place in level:
                has_guess = above[place] >= 0 and growth.add(above[place]) is not None
                here.append(len(growth) - 1 if has_guess else -1)
            above = here
        return growth.tree()


def create(rng: np.random.Generator | None = None) -> _Static:
    """Return the policy (entry point of the plug-in). With ``rng``, children are drawn; without it, the likeliest ones."""
    return _Static(rng)
