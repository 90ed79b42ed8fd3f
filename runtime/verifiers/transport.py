"""K-sequential selection: approximate optimal transport for siblings that were drawn independently of each other.

At a node with the target's distribution t, k children are drawn from the draft's distribution d, so that one token may
occur several times. Each child y in turn is accepted with probability min(1, t(y) / (r * d(y))). With

    b = sum over x of min(d(x), t(x) / r)

one child is accepted with probability b, and one of k with a = 1 - (1 - b)^k. r lies between 1 and k, and is the solution of
a = r * b: with a smaller r, the accepted tokens would occur more often than in t. If all children are rejected, the next
token is drawn from t - min(d, t / r) * a / b, normalized. A token x is then accepted with probability min(d, t / r) * a / b,
and otherwise follows with the rest of t(x). The share of accepted children is at least 1 - 1/e of the best possible one.

With one child it is ``rejection``. r depends on k, so the number of children must not depend on the tokens that were drawn
for them: the policies ``dynamic`` and ``hardware`` are refused. Nodes with chosen children are verified as by ``match``.

Source: SpecTr, 2310.15141, algorithm 3 (K-SEQ).
"""

from __future__ import annotations

import numpy as np

from edgedec.errors import EdgedecError
from edgedec.runtime.protocols import F32, I32, Sparse, TokenTree, Verifier
from edgedec.runtime.sampling.position_random import Draws
from edgedec.runtime.verifiers._drawn import F64, as_probs, normalized, trials
from edgedec.runtime.verifiers._top_down import TopDown
from edgedec.runtime.verifiers._traits import Traits

__all__ = ["TRAITS", "create", "selection"]

TRAITS = Traits(
    lossless="distribution",
    children="independent",
    policies=("chain", "static", "delayed"),
    reason="the number of children must not depend on the tokens that were drawn; use --verifier traversal for that tree",
)
_STEPS = 60  # halvings of the interval that contains r, which leave an error below that of float64


def selection(target: F64, ids: I32, proposal: F64, k: int) -> tuple[F64, F64]:
    """Return the probabilities that tokens are accepted as children, and the distribution of the next token otherwise.

    Parameters:
        target: float64 [V], summing to 1.
        ids, proposal: the draft's distribution, [n] and float64 [n], summing to 1.
        k: number of children, at least 1.

    Returns:
        accepted: float64 [n], the probability that a child is accepted if it has the token ids[i].
        left: float64 [V], summing to 1.
    """
    at_ids = target[ids]

    def shares(r: float) -> tuple[float, float]:
        one = float(np.minimum(proposal, at_ids / r).sum())
        return one, 1 - (1 - one) ** k

    low, high = 1.0, float(k)
    for _ in range(_STEPS if k > 1 else 0):
        middle = (low + high) / 2
        one, any_of = shares(middle)
        low, high = (middle, high) if any_of > middle * one else (low, middle)
    one, any_of = shares(high)
    accepted = np.zeros_like(proposal)
    np.divide(at_ids, high * proposal, out=accepted, where=proposal > 0)
    left = target.copy()
    if one > 0:
        left[ids] = np.maximum(left[ids] - np.minimum(proposal, at_ids / high) * (any_of / one), 0)
    rest = normalized(left)
    return np.minimum(accepted, 1), target if rest is None else rest


def _select(tree: TokenTree, siblings: list[int], guess: Sparse, target: F32, draws: Draws) -> tuple[int | None, F64]:
    """Return the accepted sibling, or None, and then the distribution of the next token."""
    if len(siblings) > 1 and not tree.with_replacement:
        raise EdgedecError(
            f"the verifier 'transport' needs siblings that were drawn independently of each other, but each of the "
            f"{len(siblings)} siblings from node {siblings[0]} on excludes those before it; use --verifier traversal"
        )
    tried = list(trials(tree, siblings, guess))
    accepted, left = selection(as_probs(target), guess.ids, tried[0].proposal, len(tried))
    return next((trial.node for trial in tried if draws.random() < accepted[trial.at]), None), left


def create() -> Verifier:
    """Return the verifier (entry point of the plug-in)."""
    return TopDown(_select)
