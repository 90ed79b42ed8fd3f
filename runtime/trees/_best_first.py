"""Best-first growth: of all nodes that a tree could still take, always the one that is likeliest to be accepted.

Source: DySpec (2410.11744), its heap of residual distributions. A node's value is the estimated probability that the
text comes to it: the root's is 1, a child's is its parent's times the draft's probability of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from edgedec.runtime.trees._growth import Chosen, Drawn, Growth

__all__ = ["BestFirst"]

_LATE = 1 << 32  # a bound comes after the children that are as good: they cost no call
_WINDOW = 0.5  # nodes this near to the best one are expanded with it, in one call


class BestFirst:
    """One expansion. Override ``goes_on`` to stop it early, ``rank`` to order otherwise.

    The heap holds each node at most once, for its next child or, while its distribution is not known, for its first,
    by an upper bound. So a distribution is asked for only when its node is the best place to go on; the nodes nearly
    as good are then asked for in the same call. That changes the number of calls and nothing else.

    Parameters:
        growth: its root is to be expanded.
        nodes, depth: limits of the tree.
        factor: by depth of the parent, multiplies the draft's probabilities; the product counts as 1 at most.

    Members:
        values, probs: of the nodes so far; a probability as the draft says it.
        heap: (-value or bound, when it came, node).
        known: of each node so far, whether its entry in the heap is for a child rather than a bound.
    """

    def __init__(self, growth: Growth, nodes: int, depth: int, factor: Sequence[float]) -> None:
        self.growth, self.nodes, self.depth, self.factor = growth, nodes, depth, factor
        self.values, self.probs = [1.0], [1.0]
        self.known = [False]
        self.heap: list[tuple[float, int, int]] = []
        if depth and nodes > 1:
            self.heap.append((-min(1.0, factor[0]), 0, 0))
        self.asks_for_children = False
        self._came = 0

    def run(self) -> None:
        """Grow until a limit is met, no candidate is left, or ``goes_on`` says no."""
        growth, heap, values, known = self.growth, self.heap, self.values, self.known
        while heap and len(values) < self.nodes:
            key, _, node = heap[0]
            if known[node]:
                if self.asks_for_children and not self.goes_on(-key, node):
                    return
                self._add(node)
                continue
            if node not in growth.expanded:
                if not self.goes_on(-key, node):
                    return
                growth.expand(self._batch(-key) if len(heap) > 1 else [node])
            known[node] = True
            self._renew(node)

    def goes_on(self, value: float, node: int) -> bool:
        """Asked before ``node`` is expanded, and before it gets a child if ``asks_for_children`` (then it is ``known``).

        ``value`` is what the child is worth, or could be at most: the best there is.
        """
        return True

    def rank(self, node: int, deal: Chosen | Drawn) -> float:
        """The value of a node's next child, as far as it may be known before the child is."""
        share = self.factor[self.growth.depths[node]] * deal.reach
        return self.values[node] * share if share < 1 else self.values[node]

    def _batch(self, bound: float) -> list[int]:
        """Whom to expand with the first of the heap."""
        room = self.nodes - len(self.values)
        expanded, known = self.growth.expanded, self.known
        near = [
            (key, came, node)
            for key, came, node in self.heap
            if -key >= _WINDOW * bound and not known[node] and node not in expanded
        ]
        return sorted([node for _, _, node in heapq.nsmallest(room, near)]) if len(near) > 1 else [near[0][2]]

    def _add(self, node: int) -> None:
        growth = self.growth
        prob = growth.add(node)
        assert prob is not None  # it was in the heap
        depth, child = growth.depths[node], len(self.values)
        share = self.factor[depth] * prob
        value = self.values[node] * share if share < 1 else self.values[node]
        self.values.append(value)
        self.probs.append(prob)
        self.known.append(False)
        self._renew(node)
        if depth + 1 < self.depth:
            self._came += 1
            share = self.factor[depth + 1]
            heapq.heappush(self.heap, (-value * share if share < 1 else -value, _LATE + self._came, child))

    def _renew(self, node: int) -> None:
        """Put ``node``, which is first in the heap, where its next child belongs."""
        deal = self.growth.deals.get(node)
        if deal is None:
            heapq.heappop(self.heap)
        else:
            self._came += 1
            heapq.heapreplace(self.heap, (-self.rank(node, deal), self._came, node))
