"""Best-first growth: always add the node that is most likely to be accepted.

The value of a node is the estimated probability that the text reaches it: 1 for the root; for a child, its parent's value
times the draft's probability of the child.

Source: DySpec (2410.11744), the heap of residual distributions.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from edgedec.runtime.protocols import Drafting
from edgedec.runtime.trees._growth import ChosenChildren, DrawnChildren, Growth

__all__ = ["BestFirst"]

_LATE = 1 << 32  # offset that sorts bounds after children of equal value, because children need no call
_WINDOW = 0.5  # minimum bound, relative to the best one, of the nodes that are expanded in the same call


class BestFirst:
    """The best-first growth of one tree. Subclasses override ``goes_on`` to stop early and ``rank`` to change the order.

    The heap contains each node at most once: with the value of its next child, or, as long as the node's distribution is
    not known, with an upper bound of the first child's value. Therefore the draft is asked for a distribution only if its
    node is the best place to continue. Nodes with nearly as good a bound are expanded in the same call, which changes the
    number of calls but not the tree.

    Parameters:
        growth: the tree to grow; its root is not expanded yet.
        nodes, depth: limits of the tree.
        factor: factors for the draft's probabilities by depth of the parent; a product above 1 counts as 1.

    Members:
        values: values of the nodes.
        probs: draft probabilities of the nodes.
        heap: (-value or -bound, order of insertion, node).
        known: for each node, True if its distribution is known, so that its entry in the heap is a child's value.
        asks_for_children: call ``goes_on`` before each child, too.
    """

    def __init__(self, growth: Growth, nodes: int, depth: int, factor: Sequence[float]) -> None:
        self.growth, self.nodes, self.depth, self.factor = growth, nodes, depth, factor
        self.values, self.probs = [1.0], [1.0]
        self.known = [False]
        self.heap: list[tuple[float, int, int]] = []
        if depth and nodes > 1:
            self.heap.append((-min(1.0, factor[0]), 0, 0))
        self.asks_for_children = False
        self._inserted = 0  # counts insertions into the heap

    def run(self) -> Drafting[None]:
        """Grow until a limit is reached, no candidate is left, or ``goes_on`` returns False."""
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
                yield from growth.expand(self._batch(-key) if len(heap) > 1 else [node])
            known[node] = True
            self._renew(node)

    def goes_on(self, value: float, node: int) -> bool:
        """Return whether to continue. It is called before ``node`` is expanded, with its children's bound as ``value``.

        With ``asks_for_children`` it is also called before ``node``, then ``known``, gets a child of value ``value``.
        No other candidate has a larger value.
        """
        return True

    def rank(self, node: int, children: ChosenChildren | DrawnChildren) -> float:
        """Return the value of a node's next child, using only what is known before the child is drawn."""
        share = self.factor[self.growth.depths[node]] * children.reach
        return self.values[node] * share if share < 1 else self.values[node]

    def _batch(self, bound: float) -> list[int]:
        """Return the nodes to expand in the next call: the first of the heap, and those with nearly as good a bound."""
        room = self.nodes - len(self.values)
        expanded, known = self.growth.expanded, self.known
        near = [
            (key, order, node)
            for key, order, node in self.heap
            if -key >= _WINDOW * bound and not known[node] and node not in expanded
        ]
        return sorted([node for _, _, node in heapq.nsmallest(room, near)]) if len(near) > 1 else [near[0][2]]

    def _add(self, node: int) -> None:
        """Give ``node``, which is first in the heap, its next child."""
        growth = self.growth
        prob = growth.add(node)
        assert prob is not None  # nodes without further children are not in the heap
        depth, child = growth.depths[node], len(self.values)
        share = self.factor[depth] * prob
        value = self.values[node] * share if share < 1 else self.values[node]
        self.values.append(value)
        self.probs.append(prob)
        self.known.append(False)
        self._renew(node)
        if depth + 1 < self.depth:
            self._inserted += 1
            share = self.factor[depth + 1]
            heapq.heappush(self.heap, (-value * share if share < 1 else -value, _LATE + self._inserted, child))

    def _renew(self, node: int) -> None:
        """Sort ``node``, which is first in the heap, by its next child, or remove it if there is none."""
        children = self.growth.pending.get(node)
        if children is None:
            heapq.heappop(self.heap)
        else:
            self._inserted += 1
            heapq.heapreplace(self.heap, (-self.rank(node, children), self._inserted, node))
