"""Typical acceptance: accept guesses that the target finds likely enough. **Lossy**: the text is another one.

A guess y after a node is accepted if the target's probability of it exceeds a threshold that falls with the entropy of the
target's distribution t there:

    t(y) > min(EPSILON, DELTA * exp(-entropy of t in nats))

Of the paths whose guesses are all accepted, the longest is taken; of equally long ones, the likeliest; of equally likely
ones, the first. The token after the path is the one of its position, as in ``match``. No guess is compared with a random
number, so where the target hesitates, the draft's likeliest token is taken, and the text varies less than the target's own.
It is a different text with different statistics, and may be a worse one. ``timings.lossless`` is ``lossy``.

Source: typical acceptance of Medusa, 2401.10774 section 2.3.1, and the constants of its implementation; it is based on
truncation by typicality, 2202.00666 and 2210.15191.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from edgedec.runtime.protocols import F32, Outcome, TokenTree, Verifier
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.verifiers._traits import Traits

__all__ = ["DELTA", "EPSILON", "TRAITS", "create", "threshold"]

TRAITS = Traits(lossless="lossy", children="chosen")

EPSILON = 0.09  # highest threshold
DELTA = 0.3  # threshold of a distribution with an entropy of 0


def threshold(probs: F32) -> float:
    """Return the probability that a guess must exceed, for the target's distribution ``probs``, float32 [V]."""
    likely = probs[probs > 0].astype(np.float64)
    return min(EPSILON, DELTA * math.exp(float((likely * np.log(likely)).sum())))


class _Typical:
    def accept(self, tree: TokenTree, target: Callable[[int], F32], random: PositionRandom, position: int) -> Outcome:
        """Return the accepted path and the next token.

        Parameters:
            tree: n nodes.
            target: returns the processed distribution after a node, float32 [V]. It is called for accepted nodes only.
            random: the random numbers of the text.
            position: position of the token after node 0.
        """
        parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
        rows: dict[int, F32] = {}
        reached = {0: (0, 0.0)}  # accepted node -> depth, and the logarithm of the path's probability
        for node in range(1, len(tokens)):
            parent = parents[node]
            if parent not in reached:
                continue
            if parent not in rows:
                rows[parent] = target(parent)
            prob = float(rows[parent][tokens[node]])
            if prob > threshold(rows[parent]):
                depth, score = reached[parent]
                reached[node] = depth + 1, score + math.log(prob)
        best = max(reached, key=lambda node: reached[node])
        path = [best]
        while path[-1]:
            path.append(parents[path[-1]])
        token = random.token(target(best), position + len(path) - 1)
        return Outcome(path=np.array(path[::-1], np.int32), next_token=token)


def create() -> Verifier:
    """Return the verifier (entry point of the plug-in)."""
    return _Typical()
