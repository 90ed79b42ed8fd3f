"""A chain: after each token the drafter's most likely next one, to the depth limit or until the drafter has no guess."""

from __future__ import annotations

import numpy as np

from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Limits, Sparse, TokenTree

__all__ = ["create"]


class _Chain:
    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> TokenTree:
        tokens, drafts = [int(text[-1])], dict[int, Sparse]()
        tree = TokenTree(tokens=text[-1:], parents=np.array([-1], np.int32), draft=drafts)
        while len(tokens) <= min(limits.depth, limits.nodes - 1):
            node = len(tokens) - 1
            (guess,) = draft.expand(text, tree, np.array([node], np.int32))
            if not len(guess.ids):
                break
            drafts[node] = guess
            tokens.append(int(guess.ids[guess.probs.argmax()]))
            parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
            tree = TokenTree(tokens=np.array(tokens, np.int32), parents=parents, draft=drafts)
        return tree


def create() -> _Chain:
    """Plug-in entry."""
    return _Chain()
