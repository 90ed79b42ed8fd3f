"""Perplexity: how well a target predicts token sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, DeviceError
from edgedec.progress import Progress, silent
from edgedec.runtime.protocols import F32, I32, Limits, Pass, State, Target

__all__ = ["Score", "check_finite", "check_ids", "log_likelihoods", "next_log_probs", "perplexity"]

F64 = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Score:
    """``nats``: sum of the negative log-likelihoods of ``tokens`` tokens."""

    tokens: int
    nats: float

    @property
    def perplexity(self) -> float:
        """exp of the mean; at most exp(700), near the largest float, for a model that is far off."""
        return float(np.exp(min(self.nats / self.tokens, 700.0)))


def check_ids(ids: I32, vocab_limit: int) -> None:
    """Raises:
    BundleError: an id of the tokenizer has no logit.
    """
    if len(ids) and int(ids.max()) >= vocab_limit:
        raise BundleError(
            f"the tokenizer gives token id {int(ids.max())}, the model's tokens end at {vocab_limit - 1}: "
            "they do not belong together; quantize the checkpoint again"
        )


def check_finite(values: F64) -> None:
    """Raises:
    DeviceError: a log-likelihood is NaN or infinite.
    """
    if not np.isfinite(values).all():
        raise DeviceError("the target's logits are not finite; run `edgedec doctor`, or try another --device")


def _log_softmax(logits: F32) -> F64:
    """Over rows, float [n, vocab] -> [n, vocab]; rows with infinite logits become NaN, which the callers refuse."""
    found = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        found -= found.max(axis=1, keepdims=True)
        found -= np.log(np.exp(found).sum(axis=1, keepdims=True))
    return found


def _read(target: Target, state: State, limits: Limits, ids: I32, *, every_row: bool) -> Iterator[tuple[int, F32]]:
    """Append ``ids`` to the state in passes of at most ``limits.nodes`` rows.

    Yields for each pass the index of its first id, and the logits of all its rows or of its last alone.
    """
    begin = state.length
    for start in range(0, len(ids), limits.nodes):
        chunk = ids[start : start + limits.nodes]
        rows = np.arange(len(chunk), dtype=np.int32)
        work = Pass(ids=chunk, positions=begin + start + rows, logits=rows if every_row else rows[-1:])
        (result,) = target.submit([(state, work)]).result()
        state.commit(rows)
        yield start, result.logits


def log_likelihoods(target: Target, state: State, limits: Limits, ids: I32, wanted: I32, *, vocab_limit: int) -> F64:
    """ln p(wanted[i] | what the state holds, ids[: i + 1]), float64 [n]; the state then holds ``ids`` as well.

    Args:
        ids, wanted: int32 [n], n >= 1.
        vocab_limit: the tokenizer's size; ids from here on are padding and take no probability.

    Raises:
        BundleError: an id of ``wanted`` is not below ``vocab_limit``.
        DeviceError: the target returned NaN or infinity.
    """
    check_ids(wanted, vocab_limit)
    found = np.empty(len(ids))
    for start, logits in _read(target, state, limits, ids, every_row=True):
        n = len(logits)
        found[start : start + n] = _log_softmax(logits[:, :vocab_limit])[np.arange(n), wanted[start : start + n]]
    check_finite(found)
    return found


def next_log_probs(target: Target, state: State, limits: Limits, ids: I32, *, vocab_limit: int) -> F64:
    """ln p(every token | what the state holds, ids int32 [n >= 1]), float64 [vocab_limit]; the state then holds ``ids``.

    Not checked for NaN: only the entries that are used count, see ``check_finite``.
    """
    *_, (_, logits) = _read(target, state, limits, ids, every_row=False)
    found: F64 = _log_softmax(logits[-1:, :vocab_limit])[0]
    return found


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
        BundleError: an id is not below ``vocab_limit``.
        DeviceError: the target returned NaN or infinity.
    """
    state = target.open(limits)
    nats, tokens, total = 0.0, 0, sum(len(window) - 1 for window in windows)
    try:
        for window in windows:
            state.truncate(0)
            # The last token is predicted and predicts nothing.
            found = log_likelihoods(target, state, limits, window[:-1], window[1:], vocab_limit=vocab_limit)
            nats -= float(found.sum())
            tokens += len(window) - 1
            progress("tokens", tokens, total)
    finally:
        state.close()
    return Score(tokens=tokens, nats=nats)
