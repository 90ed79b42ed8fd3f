"""Log-probabilities of tokens: as the model computes them, or as the sampling options leave them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgedec.errors import DeviceError, UsageError
from edgedec.runtime.protocols import F32, I32, Processor
from edgedec.runtime.sampling.likeliest import RowLikeliest, largest_ids
from edgedec.runtime.sampling.log_sum import log_sum

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


def token_logprobs(
    row: F32, token: int, text: I32 | None = None, likeliest: RowLikeliest | None = None, *, top: int, vocab: int
) -> TokenLogprobs:
    """Return the figures of ``token`` after a row of logits.

    They are the differences of logits and ``log_sum``, in float64. The result depends on the row alone, so it is the same
    with and without speculation, alone and among other sequences, and from the likeliest tokens of the row.

    Args:
        row: logits, float32 [V].
        token: id of the token that follows.
        text: ids before the token, of which nothing depends here.
        likeliest: the likeliest tokens of the row and the sum, if the pass returned them; the row is then not read.
        top: number of likeliest tokens to report, 0 to ``MOST_TOP``.
        vocab: number of the tokenizer's ids; larger ids, which pad the vocabulary, have no probability.

    Raises:
        DeviceError: a logit is NaN or +inf, or all are -inf.
        UsageError: ``token``, or one of ``top``, is not among ``likeliest``, or these have no sum: the pass had to ask for
            whole rows.
    """
    if likeliest is None:
        scores = row[:vocab]
        ids, total = largest_ids(scores, top) if top else np.zeros(0, np.intp), log_sum(scores)
        best = [(int(at), float(scores[at])) for at in ids]
        logit = float(scores[token]) if 0 <= token < len(scores) else -math.inf
    else:
        best = list(zip(likeliest.ids.tolist(), likeliest.logits.tolist(), strict=True))
        if likeliest.log_sum is None or token not in likeliest.ids or len(best) < min(top, vocab):
            raise UsageError(
                f"the figures of token {token} and of the {top} likeliest need more of a row than its {len(best)} likeliest "
                "tokens; let the pass return whole rows (Pass.top_k 0)"
            )
        total, logit, best = likeliest.log_sum, dict(best)[token], best[:top]
    if math.isnan(total):
        raise DeviceError(
            "a row of logits has NaN or +inf, or nothing but -inf: the target computed wrong results; run `edgedec doctor`, "
            "or try another --device"
        )
    return TokenLogprobs(token=token, logprob=logit - total, top=tuple((at, value - total) for at, value in best))


def processed_logprobs(
    row: F32, token: int, text: I32, likeliest: RowLikeliest | None = None, *, top: int, processor: Processor
) -> TokenLogprobs:
    """Return the figures of ``token`` in the distribution from which it was drawn.

    Args:
        row: logits, float32 [V], as ``processor`` got them.
        token: id of the token that follows.
        text: ids before the token, int32 [t].
        likeliest: the likeliest tokens of the row, of which nothing depends here.
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
