"""Multi-draft residual verification: try siblings in order, each against the residual that the previous ones left.

At a node with the target's distribution t and children drawn from the draft's distribution d, the first child y is accepted
with probability min(1, t[y] / d[y]). If it is rejected, t becomes the residual max(t - d, 0), normalized, and the next
child is tried against it. With ``with_replacement`` that child was drawn from the same d, otherwise from d without y,
normalized. If all children are rejected, the next token is drawn from the last residual.

**Losslessness** follows by induction from the last child. The last child, or the draw that replaces it, has the
distribution of the residual it is tried against, as for a single draft (2211.17192). And a child y of d that is accepted
with probability min(1, t[y] / d[y]), and otherwise replaced by a draw from the residual of t and d, has the distribution t.
The proof requires that a child has the distribution d, given everything that was known when the policy decided to draw it.
Whether there is another child, and which nodes are below it, may depend on all earlier draws. The policies in
``runtime/trees`` meet this requirement.

**Chosen children** (every probability in their draft is 1, or there is no draft) are not a sample. For them the rule of
``match`` is used, which is lossless for any children: draw from t, and accept the child that has the drawn token. This is
the residual rule for one-point drafts, evaluated for all siblings at once: accept y with probability t[y], otherwise
continue with t without y.

Source: Leviathan et al. 2211.17192 (single draft), SpecInfer 2305.09781 (several drafts, with replacement), recursive
rejection sampling 2402.14160 (without replacement); the treatment of chosen children and of a residual of 0 is derived here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.runtime.position_random import Draws, PositionRandom
from edgedec.runtime.protocols import F32, Outcome, Sparse, TokenTree, Verifier

__all__ = ["create", "normalized", "residual"]

F64 = NDArray[np.float64]


def normalized(weights: F64) -> F64 | None:
    """Return weights divided by their sum; None if the sum is 0."""
    total = weights.sum()
    return weights / total if total > 0 else None


def residual(target: F64, ids: NDArray[np.int32], proposal: F64) -> F64:
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


class _Rejection:
    def accept(self, tree: TokenTree, target: Callable[[int], F32], random: PositionRandom, position: int) -> Outcome:
        """Return the accepted path and the next token.

        Parameters:
            tree: n nodes; siblings are in the order in which they were drawn.
            target: returns the processed distribution after a node, float32 [V]. It is called for nodes of the path only.
            random: the random numbers of the text, which are independent of those that the children were drawn with.
            position: position of the token after node 0.

        Raises:
            EdgedecError: a child has probability 0 in the distribution from which it should have been drawn.
        """
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents.tolist()):
            children.setdefault(parent, []).append(node)
        path = [0]
        while True:
            node = path[-1]
            siblings, guess = children.get(node, []), tree.draft.get(node)
            if guess is None or not siblings or guess.probs.min() >= 1:
                token = random.token(target(node), position + len(path) - 1)
                child = next((at for at in siblings if tree.tokens[at] == token), None)
            else:
                draws = random.draws(position + len(path) - 1)
                child, token = _try(tree, siblings, guess, target(node), draws)
            if child is None:
                return Outcome(path=np.array(path, np.int32), next_token=token)
            path.append(child)


def _try(tree: TokenTree, siblings: list[int], guess: Sparse, target: F32, draws: Draws) -> tuple[int | None, int]:
    """Return the accepted sibling, or None, and the next token."""
    remaining = normalized(target.astype(np.float64))
    proposal = normalized(guess.probs.astype(np.float64))
    assert remaining is not None  # ``target`` sums to 1
    for child in siblings:
        token = int(tree.tokens[child])
        at = np.flatnonzero(guess.ids == token)
        if proposal is None or not len(at) or not proposal[at[0]] > 0:
            raise EdgedecError(
                f"node {child} (token {token}) cannot have been drawn from its parent's draft, which "
                f"{'has no token left' if proposal is None else 'gives it probability 0'}: the tree policy or the "
                "drafter is faulty; try --spec-type none"
            )
        if draws.random() * proposal[at[0]] < remaining[token]:
            return child, token
        remaining = residual(remaining, guess.ids, proposal)
        if not tree.with_replacement:
            left = proposal.copy()
            left[at[0]] = 0
            proposal = normalized(left)
    return None, _draw(remaining, draws)


def _draw(probs: F64, draws: Draws) -> int:
    """Return an id, drawn from a distribution float64 [V]; ids of probability 0 are never drawn."""
    ids = np.flatnonzero(probs)
    sums = np.cumsum(probs[ids])
    at = int(np.searchsorted(sums, draws.random() * sums[-1], side="right"))
    return int(ids[min(at, len(ids) - 1)])


def create() -> Verifier:
    """Return the verifier (entry point of the plug-in)."""
    return _Rejection()
