"""Block verification: accept as many guesses of a chain as possible, judged together and not one after another.

The guesses x[1..n] of a chain are drawn from the draft's distributions d[0..n-1], and t[i] is the target's distribution
after i guesses. A prefix has the weight

    p[0] = 1,    p[i] = min(1, p[i-1] * t[i-1](x[i]) / d[i-1](x[i])),

and the chain remains accepted to its end with probability p[n]. Otherwise shorter prefixes are tried, the longest first;
prefix i is accepted with probability

    h[i] = S[i] / (S[i] + 1 - p[i])    with S[i] = sum over x of max(p[i] * t[i](x) - d[i](x), 0),

and the next token is drawn from max(p[i] * t[i] - d[i], 0), normalized. h[0] is 1. The verifier ``rejection`` multiplies
min(1, t / d) of every token instead, so that a guess which the target likes more than the draft does cannot make up for an
earlier one that it likes less. No lossless rule accepts more tokens of a chain on average.

Source: block verification, 2403.10444, algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgedec.errors import UsageError
from edgedec.runtime.protocols import F32, Outcome, TokenTree, Verifier
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.verifiers._drawn import F64, as_probs, children_of, is_chosen, trials
from edgedec.runtime.verifiers._traits import Traits
from edgedec.runtime.verifiers.match import Match

__all__ = ["TRAITS", "chances", "create"]

TRAITS = Traits(
    lossless="distribution",
    children="drawn",
    policies=("chain",),
    reason="it verifies chains; use --verifier traversal for trees",
)


def chances(tree: TokenTree, target: Callable[[int], F32]) -> tuple[list[float], list[F64]]:
    """Return the probabilities with which the prefixes of a chain are accepted, and the next token's distribution for each.

    Returns:
        chances: for each node, the probability that the path to it is accepted if no longer one was.
        left: for each node, the distribution of the next token if the path to it is accepted, float64 [V].

    Raises:
        UsageError: the tree is not a chain.
    """
    children, weight = children_of(tree), 1.0
    result: list[float] = []
    left: list[F64] = []
    for node in range(len(tree.tokens)):
        probs, siblings = as_probs(target(node)), children.get(node, [])
        if siblings not in ([], [node + 1]):
            raise UsageError(
                f"the verifier 'block' verifies chains, but node {node} of the tree has the children {siblings}; use "
                "--spec-tree chain, or --verifier traversal"
            )
        if not siblings:
            result.append(weight)
            left.append(probs)
            break
        (trial,) = trials(tree, siblings, tree.draft.get(node))
        rest = weight * probs
        rest[trial.ids] = np.maximum(rest[trial.ids] - trial.proposal, 0)
        total = float(rest.sum())
        # If nothing is left, the prefix has no chance; the root has one nevertheless, because target and draft are equal.
        result.append(total / (total + (1 - weight)) if total > 0 else float(weight == 1))
        left.append(rest / total if total > 0 else probs)
        weight = min(1.0, weight * float(probs[trial.ids[trial.at]] / trial.proposal[trial.at]))
    return result, left


class _Block:
    def accept(self, tree: TokenTree, target: Callable[[int], F32], random: PositionRandom, position: int) -> Outcome:
        """Return the accepted path and the next token.

        Parameters:
            tree: a chain of n nodes.
            target: returns the processed distribution after a node, float32 [V]. It is called for every node.
            random: the random numbers of the text, which are independent of those that the guesses were drawn with.
            position: position of the token after node 0.

        Raises:
            EdgedecError: a guess has probability 0 in the distribution from which it should have been drawn.
            UsageError: the tree is not a chain.
        """
        if all(is_chosen(guess) for guess in tree.draft.values()):
            return Match().accept(tree, target, random, position)
        draws = random.draws(position)
        weights, left = chances(tree, target)
        last = len(weights) - 1
        while last and draws.random() >= weights[last]:
            last -= 1
        token = random.token(left[last], position + last)
        return Outcome(path=np.arange(last + 1, dtype=np.int32), next_token=token)


def create() -> Verifier:
    """Return the verifier (entry point of the plug-in)."""
    return _Block()
