"""The verifier that accepts the guesses which equal the tokens that would have been written without guesses.

The token at a position is a function of the target's distribution and of the random numbers that belong to the position
(``position_random``). The text is therefore the same, token for token, whatever the tree contains, whichever drafter made it
and however many passes were run. The draft may use the same numbers to guess the token (``coupling``). At temperature 0 this
verifier equals ``greedy``.

Source: drafter-invariant speculative decoding, 2408.07978.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.protocols import F32, Outcome, TokenTree, Verifier
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.verifiers._traits import Traits

__all__ = ["TRAITS", "Match", "create"]

TRAITS = Traits(lossless="exact", children="coupled")


class Match(CompiledParts[bool]):
    """The verifier ``match``: follow the tokens of the positions until one has no node in the tree."""

    compiled = True  # the compiled loop has this rule

    def accept(self, tree: TokenTree, target: Callable[[int], F32], random: PositionRandom, position: int) -> Outcome:
        """Return the accepted path and the next token.

        Parameters:
            tree: n nodes; of siblings with equal tokens, the first is accepted.
            target: returns the processed distribution after a node, float32 [V]. It is called for nodes of the path only.
            random: the random numbers of the text.
            position: position of the token after node 0.
        """
        children: dict[tuple[int, int], int] = {}
        for node in range(1, len(tree.tokens)):
            children.setdefault((int(tree.parents[node]), int(tree.tokens[node])), node)
        path = [0]
        while True:
            token = random.token(target(path[-1]), position + len(path) - 1)
            child = children.get((path[-1], token))
            if child is None:
                return Outcome(path=np.array(path, np.int32), next_token=token)
            path.append(child)


def create() -> Verifier:
    """Return the verifier (entry point of the plug-in)."""
    return Match()
