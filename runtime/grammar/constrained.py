"""Sampling and drafting under a grammar: masks for the target's logits, and for the guesses of a draft."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime.drafting import BatchedDraft, expanding
from edgedec.runtime.grammar.constraint import Bools
from edgedec.runtime.grammar.reasoning import AnswerMasks
from edgedec.runtime.protocols import (
    F32,
    I32,
    CostModel,
    Draft,
    Drafting,
    Limits,
    Outcome,
    Processor,
    Sparse,
    TokenTree,
    TreePolicy,
    TreeSize,
)

__all__ = ["ConstrainedPolicy", "constrained", "masked"]

_MOST_REMADE = 3  # matchers of an answer that were made again, after which nothing is guessed: each is compiled anew
_NOTHING = Sparse(ids=np.zeros(0, np.int32), probs=np.zeros(0, np.float32))


def masked(constraint: AnswerMasks) -> Processor:
    """Return a function from logits [V] and a text [t] to the logits without tokens that the grammar does not allow there.

    After a complete answer, which is not continued, it changes nothing. It keeps a row with a logit that is NaN or infinite,
    so that the sampler refuses it.
    """

    def logits_of(logits: F32, text: I32) -> F32:
        allowed = constraint.allowed(text)
        if allowed is None or not math.isfinite(logits.max(initial=-math.inf)):
            return logits
        if len(allowed) == len(logits) and allowed.all():
            return logits
        result = np.full(len(logits), -math.inf, np.float32)
        ids = np.flatnonzero(allowed[: len(logits)])
        result[ids] = logits[ids]
        if not (result > -math.inf).any():
            raise UsageError(
                "the grammar allows no token that the model could write here; a logit bias may forbid all that it allows"
            )
        return result

    return logits_of


def constrained(processor: Processor, constraint: AnswerMasks) -> Processor:
    """Return a processor that excludes tokens which the grammar does not allow, before all other steps.

    Verifiers, policies and drafters see the distributions that it returns.
    """
    logits_of = masked(constraint)
    return lambda logits, text: processor(logits_of(logits, text), text)


class ConstrainedPolicy:
    """A tree policy whose draft guesses no token that the grammar does not allow.

    Where the grammar allows one token only, this token is the guess, and the draft is not asked. It is always right.

    Parameters:
        policy: policy that grows the trees.
        constraint: the grammar of the answer.
    """

    def __init__(self, policy: TreePolicy, constraint: AnswerMasks) -> None:
        self.policy, self.constraint = policy, constraint

    def sizes(self, limits: Limits, accept: F32) -> Sequence[TreeSize]:
        """Return the sizes of ``policy``."""
        return self.policy.sizes(limits, accept)

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
        """Return the tree that ``policy`` grows."""
        return self.policy.grow(_ConstrainedDraft(draft, self.constraint), text, limits, cost, accept)


class _ConstrainedDraft(BatchedDraft):
    def __init__(self, draft: Draft, constraint: AnswerMasks) -> None:
        self._draft, self._constraint = draft, constraint

    def expanding(self, text: I32, tree: TokenTree, nodes: I32) -> Drafting[list[Sparse]]:
        """Return the draft's distributions without tokens that the grammar forbids, or the token that it requires."""
        masks = [self._allowed(text, tree, node) for node in nodes.tolist()]
        required = [None if mask is None else _only(mask) for mask in masks]
        open_nodes = [at for at, mask in enumerate(masks) if mask is not None and required[at] is None]
        guesses = [_NOTHING if one is None else one for one in required]
        if open_nodes:
            answers = yield from expanding(self._draft, text, tree, nodes[open_nodes])
            for at, guess in zip(open_nodes, answers, strict=True):
                mask = masks[at]
                assert mask is not None
                guesses[at] = _kept(guess, mask)
        return guesses

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        """Pass on what became of a tree."""
        self._draft.observe(tree, outcome)

    def _allowed(self, text: I32, tree: TokenTree, node: int) -> Bools | None:
        """Return the tokens that may follow a node; None if no token should be guessed there.

        A text that was assumed while a pass is running need not follow the grammar, and no guess may end the answer with an
        error that the answer itself does not have.
        """
        if self._constraint.remade > _MOST_REMADE:
            return None
        path: list[int] = []
        while node > 0:
            path.append(int(tree.tokens[node]))
            node = int(tree.parents[node])
        try:
            return self._constraint.allowed(np.concatenate([text, np.array(path[::-1], np.int32)]) if path else text)
        except EdgedecError:
            return None


def _only(mask: Bools) -> Sparse | None:
    """Return the guess of the one token that a mask allows; None if it allows several."""
    first = int(mask.argmax())
    if mask[first + 1 :].any():
        return None
    return Sparse(ids=np.array([first], np.int32), probs=np.ones(1, np.float32))


def _kept(guess: Sparse, mask: Bools) -> Sparse:
    """Return the part of a guess that a mask allows. Its probabilities have the same sum as before."""
    keep = np.zeros(len(guess.ids), np.bool_)
    known = guess.ids < len(mask)
    keep[known] = mask[guess.ids[known]]
    if keep.all():
        return guess
    kept = guess.probs[keep]
    if not kept.any():
        return _NOTHING
    return replace(guess, ids=guess.ids[keep], probs=(kept * (guess.probs.sum() / kept.sum())).astype(np.float32))
