"""A tree that follows the draft's confidence: it adds the nodes with the largest probabilities.

With chosen children it is the tree of ``limits.nodes`` nodes with the largest products of draft probabilities along
their paths. With drawn children it is the tree of DySpec, whose heap contains places for children that are not drawn yet.
From the residual distribution R of a place with value v, a token y is drawn; this opens two places: that of a sibling
(R without y, value v * (1 - R[y])) and that of a child (the draft after y, value v * R[y]). The value of a place depends
on earlier draws only and not on its own token, so that the existence of a child tells nothing about its token: the
children remain a sample, and a residual verifier remains lossless. (Drawing many and keeping the best would bias it.)

The drafter is called when the best place needs a distribution, for all nodes at least half as good in one call.

Source: DySpec, 2410.11744.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.loop.trees import BEST_FIRST, CompiledGrowth, GrowthRule, always
from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Drafting, Limits, TokenTree, TreeSize
from edgedec.runtime.trees._best_first import BestFirst
from edgedec.runtime.trees._growth import Growth
from edgedec.runtime.trees.static import shape_sizes

__all__ = ["create"]

_COMPILED = always(CompiledGrowth(BEST_FIRST))


class _Dynamic(CompiledParts[GrowthRule]):
    def __init__(self, rng: np.random.Generator | None) -> None:
        self._rng = rng

    def sizes(self, limits: Limits, accept: F32) -> Sequence[TreeSize]:
        return shape_sizes(limits, accept)

    @property
    def compiled(self) -> GrowthRule | None:
        """The growth in the compiled loop; None if children are drawn."""
        return _COMPILED if self._rng is None else None

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
        growth = Growth(draft, text, limits.nodes, self._rng)
        yield from BestFirst(growth, limits.nodes, limits.depth, [1.0] * limits.depth).run()
        return growth.tree()


def create(rng: np.random.Generator | None = None) -> _Dynamic:
    """Return the policy (entry point of the plug-in). With ``rng``, children are drawn; without it, the likeliest ones."""
    return _Dynamic(rng)
