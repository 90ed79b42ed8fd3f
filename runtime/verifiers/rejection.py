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

from edgedec.runtime.protocols import F32, Sparse, TokenTree, Verifier
from edgedec.runtime.sampling.position_random import Draws
from edgedec.runtime.verifiers._drawn import F64, as_probs, residual, trials
from edgedec.runtime.verifiers._top_down import TopDown
from edgedec.runtime.verifiers._traits import Traits

__all__ = ["TRAITS", "create"]

TRAITS = Traits(lossless="distribution", children="drawn")


def _try(tree: TokenTree, siblings: list[int], guess: Sparse, target: F32, draws: Draws) -> tuple[int | None, F64]:
    """Return the accepted sibling, or None, and what is left of the target, from which the next token is then drawn."""
    remaining = as_probs(target)
    for trial in trials(tree, siblings, guess):
        if draws.random() * trial.proposal[trial.at] < remaining[trial.ids[trial.at]]:
            return trial.node, remaining
        remaining = residual(remaining, trial.ids, trial.proposal)
    return None, remaining


def create() -> Verifier:
    """Return the verifier (entry point of the plug-in)."""
    return TopDown(_try)
