"""A tree whose shape follows from the measured acceptance alone: the one with the most expected tokens.

With accept[d, r] as in ``TreePolicy``, the text reaches a node with the product, along its path, of accept[d, r] of its
rank and 1 - accept[d, i] of the siblings before it. The shape of n nodes consists of the n nodes with the largest products.
With an acceptance of 0.62, and 0.25, 0.16 and 0.14 of what is left, levels have 2 | 2 | 1 | 1 | 1 nodes if the tree has 8,
and 4 | 3 | 4 | 1 | 1 | 1 | 1 if it has 16: a long chain, and branches at its top.

If the drafter does not make a guess, its place and the places below stay empty. The shape depends on earlier rounds only
and not on drawn tokens, so that drawn children are an unbiased sample. Each level needs one call of the drafter.

Source: largest path products, Sequoia (2402.12374) and PPD (2405.18628).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.loop.drafts import DraftHandle
from edgedec.runtime.loop.trees import LEVELS, CompiledGrowth, GrowthRule
from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Drafting, Limits, TokenTree, TreeSize
from edgedec.runtime.trees._growth import Growth

__all__ = ["best_nodes", "create", "grown", "shape", "shape_sizes"]

Shape = tuple[
    tuple[int, ...], ...
]  # for each level below the root: the parents of its nodes, as places in the level above

# Depths that ``sizes`` considers, so that few of up to 63 are compared.
_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 63)
_RENEW = 4  # rounds between two computations of a shape
_STEPS = 32  # steps of 1 to which ``sizes`` rounds acceptance, so that rounds share what is computed from it
_KEPT = 32  # results of ``_sizes`` that are kept
# Nodes among which ``sizes`` finds the shapes of all depths, for each node of the largest tree. A flat shape may have
# others, which are worth less than every node of a tree twice as large.
_CONSIDERED = 2


def best_nodes(nodes: int, depth: int, accept: Sequence[Sequence[float]]) -> Iterator[tuple[float, int, int]]:
    """Yield (value, level, the parent's place in the level above) of the nodes with the largest values, the best first.

    The value of a node is the probability that the text reaches it.

    Parameters:
        nodes: number of nodes, at least 1, including the root, which is not yielded.
        depth: maximum number of levels below the root.
        accept: acceptance by depth and rank, [depth][ranks], as in ``TreePolicy``.
    """
    last = len(accept[0]) - 1 if depth else 0
    sizes = [0] * depth
    # Candidates: (-value, level, the parent's place, rank, probability that the parent is reached and no sibling was right).
    waiting = [(-accept[0][0], 0, 0, 0, 1.0)] if depth else []
    for _ in range(nodes - 1):
        if not waiting:
            break
        value, level, parent, rank, left = heapq.heappop(waiting)
        yield -value, level, parent
        rates = accept[level]
        left *= 1 - rates[min(rank, last)]
        heapq.heappush(waiting, (-left * rates[min(rank + 1, last)], level, parent, rank + 1, left))
        if level + 1 < depth:
            heapq.heappush(waiting, (value * accept[level + 1][0], level + 1, sizes[level], 0, -value))
        sizes[level] += 1


def shape(nodes: int, depth: int, accept: Sequence[Sequence[float]]) -> Shape:
    """Return the shape with the most expected tokens. ``best_nodes`` describes the parameters."""
    levels: list[list[int]] = [[] for _ in range(depth)]
    for _, level, parent in best_nodes(nodes, depth, accept):
        levels[level].append(parent)
    return tuple(tuple(level) for level in levels if level)


def shape_sizes(limits: Limits, accept: F32) -> Sequence[TreeSize]:
    """Return the sizes of the best shapes for some maximum depths, with their expected tokens.

    They are computed once for all acceptances that are equal in steps of 1/32. The nodes below a depth have the order that
    they have among all nodes, so that one search serves all depths: where passes take less than half a millisecond, a search
    for each would cost a percent of the speed.
    """
    deepest = min(limits.depth, limits.nodes - 1)
    if deepest < 1:
        return ()
    steps = np.rint(accept[:deepest] * _STEPS).astype(np.uint8)
    return _sizes(limits.nodes, deepest, steps.tobytes())


@lru_cache(maxsize=_KEPT)
def _sizes(nodes: int, deepest: int, steps: bytes) -> tuple[TreeSize, ...]:
    """Return the sizes for acceptances in steps of 1 / ``_STEPS``, uint8 [deepest, ranks]."""
    sizes: dict[tuple[int, int], float] = {}
    rates = (np.frombuffer(steps, np.uint8).reshape(deepest, -1) / _STEPS).tolist()
    best = [(value, level + 1) for value, level, _ in best_nodes(1 + _CONSIDERED * (nodes - 1), deepest, rates)]
    for depth in sorted({min(depth, deepest) for depth in _DEPTHS}):
        tokens, levels = 1.0, 0
        above = [(value, level) for value, level in best if level <= depth][: nodes - 1]
        for count, (value, level) in enumerate(above, start=2):
            tokens += value
            if level > levels:
                levels = level
            sizes[count, levels] = tokens
    return tuple(TreeSize(count, levels, tokens) for (count, levels), tokens in sizes.items())


class _Static(CompiledParts[GrowthRule]):
    def __init__(self, rng: np.random.Generator | None) -> None:
        self._rng = rng
        self._shape: Shape = ()
        self._made_for = (0, 0)  # nodes and depth of the shape
        self._age = 0  # rounds since the shape was made

    def sizes(self, limits: Limits, accept: F32) -> Sequence[TreeSize]:
        return shape_sizes(limits, accept)

    @property
    def compiled(self) -> GrowthRule | None:
        """The growth in the compiled loop; None if children are drawn."""
        return self._compiled_growth if self._rng is None else None

    def _compiled_growth(self, draft: DraftHandle, limits: Limits, accept: F32) -> CompiledGrowth:
        return CompiledGrowth(LEVELS, shape(limits.nodes, limits.depth, accept.tolist()), rounds=_RENEW)

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
        growth = Growth(draft, text, limits.nodes, self._rng)
        return (yield from grown(growth, self._renewed(limits, accept)))

    def _renewed(self, limits: Limits, accept: F32) -> Shape:
        """Return the shape of the next tree."""
        self._age += 1
        if self._made_for != (limits.nodes, limits.depth) or self._age >= _RENEW:
            self._shape = shape(limits.nodes, limits.depth, accept.tolist())
            self._made_for, self._age = (limits.nodes, limits.depth), 0
        return self._shape


def grown(growth: Growth, levels: Shape) -> Drafting[TokenTree]:
    """Return the tree of a shape. ``growth`` has no nodes but its root."""
    above = [0]  # nodes of the level above; -1: the drafter had no guess for this place
    for level in levels:
        inner = [above[place] for place in sorted(set(level)) if above[place] >= 0]
        if not inner:
            break
        yield from growth.expand(inner)
        here = []
        for place in level:
            has_guess = above[place] >= 0 and growth.add(above[place]) is not None
            here.append(len(growth) - 1 if has_guess else -1)
        above = here
    return growth.tree()


def create(rng: np.random.Generator | None = None) -> _Static:
    """Return the policy (entry point of the plug-in). With ``rng``, children are drawn; without it, the likeliest ones."""
    return _Static(rng)
