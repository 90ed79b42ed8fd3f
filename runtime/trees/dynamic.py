"""A tree that follows the draft's confidence: nodes go where the probability is.

With chosen children it is the tree of ``limits.nodes`` nodes with the largest products of draft probabilities along
their paths. With drawn children it is DySpec's: what waits in the heap is the place of a child that is not drawn yet.
From the residual distribution R of a place with value v, y is drawn; then two places open, the sibling's (R without y,
value v * (1 - R[y])) and the child's (the draft after y, value v * R[y]). A place's value rests on what was drawn before
it and never on its own token, so whether a child is there tells nothing about which it is: the children stay a sample,
and a residual verifier stays lossless. (Drawing many and keeping the best would not.)

The drafter is called when the best place needs it, for all nodes at least half as good at once.

Source: DySpec, 2410.11744.
"""

from __future__ import annotations

import numpy as np

from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Limits, TokenTree
from edgedec.runtime.trees._best_first import BestFirst
from edgedec.runtime.trees._growth import Growth

__all__ = ["create"]


class _Dynamic:
    sizes_itself = False

    def __init__(self, rng: np.random.Generator | None) -> None:
        self._rng = rng

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> TokenTree:
        growth = Growth(draft, text, limits.nodes, self._rng)
        BestFirst(growth, limits.nodes, limits.depth, [1.0] * limits.depth).run()
        return growth.tree()


def create(rng: np.random.Generator | None = None) -> _Dynamic:
    """Plug-in entry. ``rng``: draw the children from the draft; without it, take the likeliest."""
    return _Dynamic(rng)
