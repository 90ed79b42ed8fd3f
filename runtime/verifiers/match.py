"""The verifier that draws each token from the target alone and accepts the guesses that match the drawn tokens.

Each token is drawn from the target's distribution given the tokens before it, so the text has the target's distribution
regardless of the tree's contents and of the drafter. Where guesses are samples of the draft's distribution, this verifier
accepts fewer of them than ``rejection``; for single guesses both accept equally many. At temperature 0 it equals
``greedy``.

Source: derived here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgedec.runtime.protocols import F32, Outcome, TokenTree, Verifier
from edgedec.runtime.sampling import draw

__all__ = ["Match", "create"]


class Match:
    """The verifier ``match``: follow the tokens drawn from the target until one has no node in the tree."""

    def accept(self, tree: TokenTree, target: Callable[[int], F32], rng: np.random.Generator) -> Outcome:
        """Return the accepted path and the next token.

        Parameters:
            tree: n nodes; of siblings with equal tokens, the first is accepted.
            target: returns the processed distribution after a node, float32 [V]. It is called for nodes of the path only.
            rng: generator, of which one number is used for each node of the path.
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
    """Return the verifier (entry point of the plug-in)."""
    return Match()
