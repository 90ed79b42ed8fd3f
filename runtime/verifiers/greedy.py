"""The verifier for temperature 0: follow the target's likeliest tokens as long as the tree contains them.

The outcome equals that of ``match`` at temperature 0, without drawing. The text is the target's greedy text, regardless of
the tree's contents and of the drafter.

Source: greedy verification of token trees, SpecInfer (2305.09781) section 4.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgedec.errors import UsageError
from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.protocols import F32, Outcome, TokenTree, Verifier
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.verifiers._traits import Traits

__all__ = ["TRAITS", "create"]

TRAITS = Traits(lossless="exact", children="chosen")

_ROOT = np.zeros(1, np.int32)  # the path of a tree without guesses
_ROOT.setflags(write=False)


class _Greedy(CompiledParts[bool]):
    compiled = True  # the compiled loop has this rule

    def accept(self, tree: TokenTree, target: Callable[[int], F32], random: PositionRandom, position: int) -> Outcome:
        """Return the accepted path and the next token.

        Parameters:
            tree: n nodes; of siblings with equal tokens, the first is accepted.
            target: returns the processed distribution after a node, float32 [V], in which one token has probability 1. It
                is called for nodes of the path only.
            random, position: not used.

        Raises:
            UsageError: no token has probability 1, because the temperature is not 0.
        """

        def likeliest(node: int) -> int:
            probs = target(node)
            token = int(probs.argmax())
            if probs[token] != 1:
                raise UsageError(
                    f"the verifier 'greedy' works at temperature 0 only, but the likeliest token has probability "
                    f"{probs[token]:.3g}; set --temp 0, or use the verifier 'match' or 'rejection'"
                )
            return token

        return self.follow(tree, likeliest)

    def follow(self, tree: TokenTree, likeliest: Callable[[int], int]) -> Outcome:
        """Return the same as ``accept``, from the likeliest token after each node instead of its distribution."""
        if len(tree.tokens) == 1:
            return Outcome(path=_ROOT, next_token=likeliest(0))
        parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
        path = [0]
        while True:
            token = likeliest(path[-1])
            for node in range(path[-1] + 1, len(tokens)):
                if tokens[node] == token and parents[node] == path[-1]:
                    path.append(node)
                    break
            else:
                return Outcome(path=np.array(path, np.int32), next_token=token)


def create() -> Verifier:
    """Return the verifier (entry point of the plug-in)."""
    return _Greedy()
