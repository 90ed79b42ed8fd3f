"""A chain: one guess after each token, up to the depth limit or until the drafter has no guess.

It needs one call of the drafter for each node. Source: speculative decoding, 2211.17192.
"""

from __future__ import annotations

import numpy as np

from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.loop.trees import CHAIN, CompiledGrowth, GrowthRule, always
from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Drafting, Limits, TokenTree, TreeSize
from edgedec.runtime.trees._growth import Growth

__all__ = ["ONE_PATH", "create"]

ONE_PATH = True  # a plan has room for no more than the nodes of a path
_COMPILED = always(CompiledGrowth(CHAIN))


class _Chain(CompiledParts[GrowthRule]):
    def __init__(self, rng: np.random.Generator | None) -> None:
        self._rng = rng

    def sizes(self, limits: Limits, accept: F32) -> list[TreeSize]:
        reach, tokens, sizes = 1.0, 1.0, []
        for depth, rate in enumerate(accept[: min(limits.nodes - 1, limits.depth), 0].tolist(), start=1):
            reach *= rate
            tokens += reach
            sizes.append(TreeSize(nodes=1 + depth, depth=depth, tokens=tokens))
        return sizes

    @property
    def compiled(self) -> GrowthRule | None:
        """The growth in the compiled loop; None if children are drawn."""
        return _COMPILED if self._rng is None else None

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
        nodes = min(limits.nodes, limits.depth + 1)
        growth = Growth(draft, text, nodes, self._rng, children=1)
        for node in range(nodes - 1):
            yield from growth.expand([node])
            if growth.add(node) is None:
                break
        return growth.tree()


def create(rng: np.random.Generator | None = None) -> _Chain:
    """Return the policy (entry point of the plug-in). With ``rng``, guesses are drawn; without it, the likeliest ones."""
    return _Chain(rng)
