"""The distributions that the children of a node were drawn from, and the residual of a distribution after a rejection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.runtime.protocols import F32, I32, Sparse, TokenTree

__all__ = ["F64", "Trial", "as_probs", "children_of", "is_chosen", "normalized", "residual", "trials"]

F64 = NDArray[np.float64]
_ONE = np.ones(1)


class Trial(NamedTuple):
    """A child of a node, and the distribution from which it was drawn, given its siblings before it."""

    node: int
    ids: I32  # [k]
    proposal: F64  # [k], sums to 1
    at: int  # index of the child's token in ``ids``; its probability is above 0


def children_of(tree: TokenTree) -> dict[int, list[int]]:
    """Return the children of each node that has any, in their order in the tree."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        if node:
            children.setdefault(parent, []).append(node)
    return children


def is_chosen(guess: Sparse | None) -> bool:
    """Return True if the children of a node were chosen: their draft gives each probability 1, or there is none."""
    return guess is None or bool(guess.probs.min() >= 1)


def normalized(weights: F64) -> F64 | None:
    """Return weights divided by their sum; None if the sum is 0."""
    total = weights.sum()
    return weights / total if total > 0 else None


def as_probs(target: F32) -> F64:
    """Return the target's distribution float32 [V] in float64, divided by its sum."""
    probs: F64 = target.astype(np.float64)
    probs /= probs.sum()
    return probs


def residual(target: F64, ids: I32, proposal: F64) -> F64:
    """Return the distribution that remains of the target after a rejection: max(target - draft, 0), normalized.

    Parameters:
        target: float64 [V], summing to 1.
        ids, proposal: the draft's distribution, [n] and float64 [n], summing to 1.

    Returns:
        float64 [V], summing to 1. If the difference is 0 everywhere it is the target itself: then target and draft are
        equal, and a child can be rejected because of rounding only.
    """
    left = target.copy()
    left[ids] = np.maximum(left[ids] - proposal, 0)
    rest = normalized(left)
    return target if rest is None else rest


def trials(tree: TokenTree, siblings: Sequence[int], guess: Sparse | None) -> Iterator[Trial]:
    """Yield the children of a node with the distribution that each was drawn from, given the ones before it.

    For chosen children, each of these distributions has a single token.

    Raises:
        EdgedecError: a child has probability 0 in the distribution from which it should have been drawn.
    """
    if guess is None or is_chosen(guess):
        for child in siblings:
            yield Trial(child, tree.tokens[child : child + 1], _ONE, 0)
        return
    proposal = normalized(guess.probs.astype(np.float64))
    for child in siblings:
        token = int(tree.tokens[child])
        at = np.flatnonzero(guess.ids == token)
        if proposal is None or not len(at) or not proposal[at[0]] > 0:
            raise EdgedecError(
                f"node {child} (token {token}) cannot have been drawn from its parent's draft, which "
                f"{'has no token left' if proposal is None else 'gives it probability 0'}: the tree policy or the "
                "drafter is faulty; try --spec-type none"
            )
        yield Trial(child, guess.ids, proposal, int(at[0]))
        if not tree.with_replacement:
            left = proposal.copy()
            left[at[0]] = 0
            proposal = normalized(left)
