"""The verifier for temperature 0: walks along the target's likeliest tokens while the tree has them.

Source: greedy verification of token trees, SpecInfer (2305.09781) section 4. The outcome is that of ``match`` at
temperature 0, without drawing. The text is the target's greedy text whatever the tree holds and however it was drafted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgedec.errors import UsageError
from edgedec.runtime.protocols import F32, Outcome, TokenTree, Verifier

__all__ = ["create"]


class _Greedy:
    def accept(self, tree: TokenTree, target: Callable[[int], F32], rng: np.random.Generator) -> Outcome:
        """Verify a tree.

        Parameters:
            tree: n nodes; of siblings with equal tokens the first is taken.
            target: the processed distribution after a node, float32 [V]: 1 for one token. Called for nodes of the path only.
            rng: not used.

        Raises:
            UsageError: a distribution leaves a choice: the temperature is not 0.
        """
        parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
        path = [0]
        while True:
            probs = target(path[-1])
            token = int(probs.argmax())
            if probs[token] != 1:
                raise UsageError(
                    f"the verifier 'greedy' works at temperature 0 only, and here the likeliest token has probability "
                    f"{probs[token]:.3g}; set --temp 0, or take the verifier 'match' or 'rejection'"
                )
            for node in range(path[-1] + 1, len(tokens)):
                if tokens[node] == token and parents[node] == path[-1]:
                    path.append(node)
                    break
            else:
                return Outcome(path=np.array(path, np.int32), next_token=token)


def create() -> Verifier:
    """The plug-in's entry point."""
    return _Greedy()
