"""The verifier that draws as if nobody had guessed, and accepts the guesses that came true.

Source: derived here. Each token is drawn from the target's own distribution given the tokens before it, so the text has
the target's distribution whatever the tree holds and however it was drafted. It accepts less than residual sampling
does where drafts are samples; where they are single guesses it is as good. At temperature 0 it is greedy verification.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgedec.runtime.protocols import F32, Outcome, TokenTree, Verifier
from edgedec.runtime.sampling import draw

__all__ = ["Match", "create"]


class Match:
    """Walks the tree along the tokens that the target draws, until one has no node."""

    def accept(self, tree: TokenTree, target: Callable[[int], F32], rng: np.random.Generator) -> Outcome:
        """Verify a tree.

        Parameters:
            tree: n nodes; node 0 is the text's last token. Of siblings with equal tokens the first is taken.
            target: the processed distribution after a node, float32 [V]. Called for nodes of the path only.
            rng: gives one number per node of the path.

        Returns:
            ``path``: the nodes to commit, int32, in order, beginning with node 0, which is always accepted.
            ``next_token``: the token after the last of them, not yet in the cache.
        """
        children: dict[tuple[int, int], int] = {}
        for node in range(1, len(tree.tokens)):
            children.setdefault((int(tree.parents[node]), int(tree.tokens[node])), node)
        path = [0]
        while True:
            token = draw(target(path[-1]), rng)
            child = children.get((path[-1], token))
            if child is None:
                return Outcome(path=np.array(path, np.int32), next_token=token)
            path.append(child)


def create() -> Verifier:
    """The plug-in's entry point."""
    return Match()
