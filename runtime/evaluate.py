"""Perplexity: how well a target predicts token sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.errors import DeviceError
from edgedec.progress import Progress, silent
from edgedec.runtime.protocols import F32, I32, Limits, Pass, State, Target

__all__ = ["Score", "perplexity"]


@dataclass(frozen=True, kw_only=True)
class Score:
    """``nats``: sum of the negative log-likelihoods of ``tokens`` tokens."""

    tokens: int
    nats: float

    @property
    def perplexity(self) -> float:
        """exp of the mean; at most exp(700), near the largest float, for a model that is far off."""
        return float(np.exp(min(self.nats / self.tokens, 700.0)))


def _nats(logits: F32, targets: I32) -> float:
    """Sum of -log softmax(logits)[target] over rows; logits float32 [n, vocab], targets int32 [n]."""
    shifted = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinite logits become NaN, which the caller refuses
        shifted -= shifted.max(axis=1, keepdims=True)
    likelihoods = shifted[np.arange(len(targets)), targets] - np.log(np.exp(shifted).sum(axis=1))
    return float(-likelihoods.sum())


def _score_window(target: Target, state: State, limits: Limits, window: I32, vocab_limit: int) -> float:
    nats = 0.0
    seen = window[:-1]  # the last token is predicted and predicts nothing
    for start in range(0, len(seen), limits.nodes):
        ids = seen[start : start + limits.nodes]
        n = len(ids)
        rows = np.arange(n, dtype=np.int32)
        work = Pass(ids=ids, positions=start + rows, logits=rows)
        (result,) = target.submit([(state, work)]).result()
        state.commit(rows)
        nats += _nats(result.logits[:, :vocab_limit], window[start + 1 : start + 1 + n])
    if not np.isfinite(nats):
        raise DeviceError("the target's logits are not finite; run `edgedec doctor`, or try another --device")
    return nats


def perplexity(
    target: Target,
    limits: Limits,
    windows: Sequence[I32],
    *,
    vocab_limit: int,
    progress: Progress = silent,
) -> Score:
    """Score every token but the first of each window, given those before it in its window.

    Args:
        limits: passes have at most ``limits.nodes`` rows, windows at most ``limits.positions`` + 1 ids.
        windows: ids int32 [n], each n >= 2.
        vocab_limit: the tokenizer's size; ids from here on are padding and take no probability.

    Raises:
        DeviceError: the target returned NaN or infinity.
    """
    state = target.open(limits)
    nats, tokens, total = 0.0, 0, sum(len(window) - 1 for window in windows)
    try:
        for window in windows:
            state.truncate(0)
            nats += _score_window(target, state, limits, window, vocab_limit)
            tokens += len(window) - 1
            progress("tokens", tokens, total)
    finally:
        state.close()
    return Score(tokens=tokens, nats=nats)
