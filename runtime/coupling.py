"""Guesses that know the random numbers of the text.

The verifier ``match`` writes at each position the token with the shortest waiting time, E / p: p is the target's probability
of the token, and E an exponentially distributed number that belongs to the token's id at this position
(``position_random``). A drafter knows every E, and has a guess q of p. Children are chosen by q * E**-0.3. By q alone, the
likeliest tokens are chosen, whatever the numbers say; by q / E, those that come if q equals p. A draft that is partly right
does best between the two.

Source: the coupling, 2408.07978 ("Coupling without communication and drafter-invariant speculative decoding"); the exponent
is derived and fitted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.drafting import BatchedDraft, expanding
from edgedec.runtime.loop.drafts import DraftHandle
from edgedec.runtime.loop.trees import PROCESSED, RANDOM, CompiledGrowth, GrowthRule
from edgedec.runtime.protocols import (
    F32,
    I32,
    CostModel,
    Draft,
    Drafting,
    Limits,
    Outcome,
    Sparse,
    TokenTree,
    TreePolicy,
    TreeSize,
)
from edgedec.runtime.sampling import portable_math
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler

__all__ = ["SHARED", "Coupled"]

SHARED = 0.3  # exponent of the random numbers, fitted by likelihood on an earlier embedded pair, T 0.3 to 1.3


class Coupled(CompiledParts[GrowthRule]):
    """A tree policy whose draft is processed as the target's logits are, and coupled with the numbers of the text.

    Parameters:
        policy: policy that grows the trees.
        sampler: the sampling options of the text.
        random: the numbers that the verifier uses; None: the children do not depend on them.
        dropped: tokens of the sequence before its prompt, as in ``Request``.
    """

    def __init__(
        self, *, policy: TreePolicy, sampler: Sampler, random: PositionRandom | None, dropped: int = 0
    ) -> None:
        self.policy, self.sampler, self.random, self.dropped = policy, sampler, random, dropped

    def sizes(self, limits: Limits, accept: F32) -> Sequence[TreeSize]:
        """Return the sizes of ``policy``."""
        return self.policy.sizes(limits, accept)

    @property
    def compiled(self) -> GrowthRule | None:
        """The growth in the compiled loop, whose guesses are coupled with the text's numbers."""
        rule: GrowthRule | None = self.policy.compiled if isinstance(self.policy, CompiledParts) else None
        if rule is None:
            return None
        coupling = PROCESSED if self.random is None else RANDOM
        of = lru_cache(maxsize=1)(lambda growth: growth._replace(coupling=coupling))  # the loop wants the same object

        def coupled(draft: DraftHandle, limits: Limits, accept: F32) -> CompiledGrowth | None:
            growth = rule(draft, limits, accept)
            return growth if growth is None or draft.certain else of(growth)

        return coupled

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
        """Return the tree that ``policy`` grows."""
        return self.policy.grow(_CoupledDraft(draft, self), text, limits, cost, accept)


class _CoupledDraft(BatchedDraft):
    def __init__(self, draft: Draft, by: Coupled) -> None:
        self._draft, self._by = draft, by

    def expanding(self, text: I32, tree: TokenTree, nodes: I32) -> Drafting[list[Sparse]]:
        """Return the draft's distributions, each as one that the text's next token is likely to follow."""
        by, result = self._by, []
        guesses = yield from expanding(self._draft, text, tree, nodes)
        for node, guess in zip(nodes.tolist(), guesses, strict=True):
            if len(guess.ids) > 1:
                path = _path(tree, node)
                if guess.raw:
                    guess = by.sampler.sparse(guess, np.concatenate([text, np.array(path, np.int32)]))
                if by.random is not None and len(guess.ids):
                    guess = _coupled(guess, by.random, by.dropped + len(text) + len(path))
            result.append(guess)
        return result

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        """Pass on what became of a tree."""
        self._draft.observe(tree, outcome)


def _path(tree: TokenTree, node: int) -> list[int]:
    """Return the tokens from the root's child down to ``node``; none for the root."""
    tokens = []
    while node > 0:
        tokens.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return tokens[::-1]


def _coupled(guess: Sparse, random: PositionRandom, position: int) -> Sparse:
    """Return how likely each token is to come, given the numbers of its position."""
    numbers = -portable_math.log(random.uniforms(position, guess.ids))
    weights = guess.probs.astype(np.float64) * numbers**-SHARED
    return Sparse(ids=guess.ids, probs=(weights * (guess.probs.sum() / weights.sum())).astype(np.float32))
