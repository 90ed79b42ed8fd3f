"""Multi-draft residual verification: siblings are tried in order, each against what its predecessors left of the target.

At a node with target t and children drawn from d: accept the first child y with probability min(1, t[y] / d[y]). If it is
rejected, t becomes the residual max(t - d, 0), normalized, and the next child is tried against that; with
``with_replacement`` it came from the same d, else from d without y, normalized. If all are rejected, the next token is
drawn from the last residual.

**Lossless**, by induction from the last child: that child or the draw after it has the distribution of the residual it
is tried against, as for a single draft (2211.17192); and a child y of d that is accepted with min(1, t[y] / d[y]) and
otherwise replaced by a draw from the residual of t and d has the distribution t. What it needs is that, given everything
that was known when it was decided that there is to be a child, the child has the distribution d; whether there is another
one, and what hangs below, may depend on all that was drawn before. The policies in `runtime/trees` keep to that.

**Children that were chosen** (every probability in their draft is 1, or there is no draft) are no sample of anything. For
them the rule of ``match`` holds, which is lossless for any children: one draw from t, and whether a child has it. That is
the residual rule with one-point drafts, all tried at once: accept y with probability t[y], else go on with t without y.

Source: Leviathan et al. 2211.17192 (single draft), SpecInfer 2305.09781 (several, with replacement), recursive rejection
sampling 2402.14160 (without); what holds for chosen children and for the zero sum is derived here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.runtime.protocols import F32, Outcome, Sparse, TokenTree, Verifier
from edgedec.runtime.sampling import draw

__all__ = ["create", "normalized", "residual"]

F64 = NDArray[np.float64]


def normalized(weights: F64) -> F64 | None:
    """Weights as probabilities; None if they have no sum to divide by."""
    total = weights.sum()
    return weights / total if total > 0 else None


def residual(target: F64, ids: NDArray[np.int32], proposal: F64) -> F64:
    """What a rejected draft leaves of the target: max(target - draft, 0), normalized.

    Parameters:
        target: float64 [V], summing to 1.
        ids, proposal: the draft's distribution, [n] and float64 [n], summing to 1.

    Returns:
        float64 [V], summing to 1. The target itself where the draft covers all of it: then the two are equal, no child
        can be rejected but by rounding, and nothing is left to normalize.
    """
    left = target.copy()
    left[ids] = np.maximum(left[ids] - proposal, 0)
    rest = normalized(left)
    return target if rest is None else rest


class _Rejection:
    def accept(self, tree: TokenTree, target: Callable[[int], F32], rng: np.random.Generator) -> Outcome:
        """Verify a tree.

        Parameters:
            tree: n nodes; siblings in the order in which they were drawn.
            target: the processed distribution after a node, float32 [V]. Called for nodes of the path only.
            rng: must be independent of what the children were drawn with: the same generator, or a spawned one, but
                not a second one with the same seed.

        Returns:
            ``path``: the nodes to commit, int32, in order, beginning with node 0, which is always accepted.
            ``next_token``: the token after the last of them, not yet in the cache.

        Raises:
            EdgedecError: a child has no probability in the distribution that it is said to be drawn from.
        """
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents.tolist()):
            children.setdefault(parent, []).append(node)
        path = [0]
        while True:
            node = path[-1]
            siblings, guess = children.get(node, []), tree.draft.get(node)
            if guess is None or not siblings or guess.probs.min() >= 1:
                token = draw(target(node), rng)
                child = next((at for at in siblings if tree.tokens[at] == token), None)
            else:
                child, token = _try(tree, siblings, guess, target(node), rng)
            if child is None:
                return Outcome(path=np.array(path, np.int32), next_token=token)
            path.append(child)


def _try(
    tree: TokenTree, siblings: list[int], guess: Sparse, target: F32, rng: np.random.Generator
) -> tuple[int | None, int]:
    """The accepted one of drawn siblings, or None; and the token."""
    wanted = normalized(target.astype(np.float64))
    proposal = normalized(guess.probs.astype(np.float64))
    assert wanted is not None  # a distribution
    for child in siblings:
        token = int(tree.tokens[child])
        at = np.flatnonzero(guess.ids == token)
        if proposal is None or not len(at) or not proposal[at[0]] > 0:
            raise EdgedecError(
                f"node {child} (token {token}) cannot have been drawn from its parent's draft, which "
                f"{'has no token left' if proposal is None else 'gives it no probability'}: the tree policy or the "
                "drafter broke its promise; try --spec-type none"
            )
        if rng.random() * proposal[at[0]] < wanted[token]:
            return child, token
        wanted = residual(wanted, guess.ids, proposal)
        if not tree.with_replacement:
            left = proposal.copy()
            left[at[0]] = 0
            proposal = normalized(left)
    return None, draw(wanted.astype(np.float32), rng)


def create() -> Verifier:
    """The plug-in's entry point."""
    return _Rejection()
