"""Perplexity, a measure of the ability of a target to predict token sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, DeviceError
from edgedec.progress import Progress, silent
from edgedec.runtime.protocols import F32, I32, Limits, Pass, State, Target

__all__ = ["Score", "check_finite", "check_ids", "log_likelihoods", "next_log_probs", "perplexity", "read_logits"]

F64 = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Score:
    """The score of token sequences. ``nats`` is the sum of the negative log-likelihoods of ``tokens`` tokens."""

    tokens: int
    nats: float

    @property
    def perplexity(self) -> float:
        """Exponential of the mean of ``nats``, at most exp(700), which is near the largest float."""
        return float(np.exp(min(self.nats / self.tokens, 700.0)))


def check_ids(ids: I32, vocab_limit: int) -> None:
    """Check that all ids are below ``vocab_limit``.

    Raises:
        BundleError: an id is not.
    """
    if len(ids) and int(ids.max()) >= vocab_limit:
        raise BundleError(
            f"the tokenizer gives token id {int(ids.max())}, the model's tokens end at {vocab_limit - 1}: "
            "they do not belong together; quantize the checkpoint again"
        )


def check_finite(values: F64) -> None:
    """Check log-likelihoods.

    Raises:
        DeviceError: one is NaN or infinite.
    """
    if not np.isfinite(values).all():
        raise DeviceError("the target's logits are not finite; run `edgedec doctor`, or try another --device")


def _log_softmax(logits: F32) -> F64:
    """Return the log-softmax of each row, float64 [n, vocab]. Rows with infinite logits become NaN."""
    result = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        result -= result.max(axis=1, keepdims=True)
        result -= np.log(np.exp(result).sum(axis=1, keepdims=True))
    return result


def read_logits(
    target: Target, state: State, limits: Limits, ids: I32, *, every_row: bool
) -> Iterator[tuple[int, F32]]:
    """Append ``ids`` to the state in passes of at most ``limits.nodes`` rows.

    Yields:
        For each pass, the index of its first id, and the logits of all its rows or of its last row only.
    """
    begin = state.length
    for start in range(0, len(ids), limits.nodes):
        chunk = ids[start : start + limits.nodes]
        rows = np.arange(len(chunk), dtype=np.int32)
        work = Pass(ids=chunk, positions=begin + start + rows, logits=rows if every_row else rows[-1:])
        (result,) = target.submit([(state, work)]).result()
        state.commit(rows)
        yield start, result.logits


def log_likelihoods(target: Target, state: State, limits: Limits, ids: I32, next_ids: I32, *, vocab_limit: int) -> F64:
    """Return ln p(next_ids[i] | rows of the state, ids[: i + 1]), float64 [n], and append ``ids`` to the state.

    Args:
        target, state: the target and the cache on it.
        limits: passes have at most ``limits.nodes`` rows.
        ids, next_ids: int32 [n], n >= 1.
        vocab_limit: number of the tokenizer's ids; larger ids are padding and get no probability.

    Raises:
        BundleError: an id of ``next_ids`` is not below ``vocab_limit``.
        DeviceError: the target returned NaN or infinity.
    """
    check_ids(next_ids, vocab_limit)
    values = np.empty(len(ids))
    for start, logits in read_logits(target, state, limits, ids, every_row=True):
        n = len(logits)
        values[start : start + n] = _log_softmax(logits[:, :vocab_limit])[np.arange(n), next_ids[start : start + n]]
    check_finite(values)
    return values


def next_log_probs(target: Target, state: State, limits: Limits, ids: I32, *, vocab_limit: int) -> F64:
    """Return ln p(token | rows of the state, ids) for every token, float64 [vocab_limit], and append ``ids`` to the state.

    ``ids`` is int32 [n >= 1]. The result is not checked for NaN; call ``check_finite`` on the entries that are used.
    """
    *_, (_, logits) = read_logits(target, state, limits, ids, every_row=False)
    log_probs: F64 = _log_softmax(logits[-1:, :vocab_limit])[0]
    return log_probs


def perplexity(
    target: Target,
    limits: Limits,
    windows: Sequence[I32],
    *,
    vocab_limit: int,
    progress: Progress = silent,
) -> Score:
    """Score every token of each window except the first, given the tokens before it in its window.

    Args:
        target: runs the passes.
        limits: passes have at most ``limits.nodes`` rows, windows at most ``limits.positions`` + 1 ids.
        windows: ids, int32 [n] each, with n >= 2.
        vocab_limit: number of the tokenizer's ids; larger ids are padding and get no probability.
        progress: called after each window.

    Raises:
        BundleError: an id is not below ``vocab_limit``.
        DeviceError: the target returned NaN or infinity.
    """
    state = target.open(limits)
    nats, tokens, total = 0.0, 0, sum(len(window) - 1 for window in windows)
    try:
        for window in windows:
            state.truncate(0)
            # The last token is only predicted; its own row is not needed.
            values = log_likelihoods(target, state, limits, window[:-1], window[1:], vocab_limit=vocab_limit)
            nats -= float(values.sum())
            tokens += len(window) - 1
            progress("tokens", tokens, total)
    finally:
        state.close()
    return Score(tokens=tokens, nats=nats)
