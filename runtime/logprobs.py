"""Log-probabilities of tokens, as the model computes them, before any sampling option."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgedec.runtime.protocols import F32

__all__ = ["MOST_TOP", "TokenLogprobs", "token_logprobs"]

MOST_TOP = 20  # maximum number of likeliest tokens to report beside a token


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """The log-probability of a token, and those of the likeliest tokens at its place.

    Members:
        token: the token's id.
        logprob: natural logarithm of its probability; -inf if the model excludes it.
        top: (id, logprob) of the likeliest tokens in descending order; of equal ones, the lower id comes first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(row: F32, token: int, *, top: int, vocab: int) -> TokenLogprobs:
    """Return the figures of ``token`` after a row of logits.

    Sums are in float64. The result depends on the row alone, so it is the same with and without speculation, alone and
    among other sequences.

    Args:
        row: logits, float32 [V].
        token: id of the token that follows.
        top: number of likeliest tokens to report, 0 to ``MOST_TOP``.
        vocab: number of the tokenizer's ids; larger ids, which pad the vocabulary, have no probability.
    """
    scores = row[:vocab].astype(np.float64)
    most = float(scores.max())
    total = most + float(np.log(np.exp(scores - most).sum()))
    best = np.lexsort((np.arange(len(scores)), -scores))[:top] if top else ()
    return TokenLogprobs(
        token=token,
        logprob=float(scores[token]) - total if 0 <= token < len(scores) else -np.inf,
        top=tuple((int(at), float(scores[at]) - total) for at in best),
    )
