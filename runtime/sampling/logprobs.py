"""Log-probabilities of tokens: as the model computes them, or as the sampling options leave them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgedec.runtime.protocols import F32, I32, Processor

__all__ = ["MOST_TOP", "LogprobsOf", "TokenLogprobs", "processed_logprobs", "token_logprobs"]

MOST_TOP = 20  # maximum number of likeliest tokens to report beside a token
LogprobsOf = Literal["model", "sampling"]  # before all sampling options, or after them


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


def token_logprobs(row: F32, token: int, text: I32 | None = None, *, top: int, vocab: int) -> TokenLogprobs:
    """Return the figures of ``token`` after a row of logits.

    Sums are in float64. The result depends on the row alone, so it is the same with and without speculation, alone and
    among other sequences.

    Args:
        row: logits, float32 [V].
        token: id of the token that follows.
        text: ids before the token, of which nothing depends here.
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


def processed_logprobs(row: F32, token: int, text: I32, *, top: int, processor: Processor) -> TokenLogprobs:
    """Return the figures of ``token`` in the distribution from which it was drawn.

    Args:
        row: logits, float32 [V].
        token: id of the token that follows.
        text: ids before the token, int32 [t].
        top: number of likeliest tokens to report, 0 to ``MOST_TOP``. Excluded tokens, whose probability is 0, are never
            reported.
        processor: returns the distribution, which depends on the sampling options and on the grammar.
    """
    probs = processor(row, text)
    possible = np.flatnonzero(probs)
    best = possible[np.lexsort((possible, -probs[possible]))][:top]
    return TokenLogprobs(
        token=token,
        logprob=float(np.log(probs[token], dtype=np.float64)) if probs[token] else -np.inf,
        top=tuple((int(at), float(np.log(probs[at], dtype=np.float64))) for at in best),
    )
