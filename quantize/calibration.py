"""Provide token ids for calibration and for the quality table, and measure the float model's perplexity on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.families import context_size
from edgedec.memory import format_bytes
from edgedec.quantize.batch_interpreter import BatchCache, BatchInterpreter
from edgedec.quantize.pipeline import checkpoint_graph, tensor_loader
from edgedec.quantize.readers import Checkpoint

__all__ = ["SAMPLING_LIMIT_BYTES", "can_sample", "cut_windows", "float_perplexity", "full_windows", "sample_ids"]

I32 = NDArray[np.int32]

SAMPLING_LIMIT_BYTES = 512 << 20  # limit on the float32 weights, which sampling holds in memory
_SEQUENCES_AT_ONCE = 64
_ROWS_AT_ONCE = 2048  # rows of logits that are held in float64 at a time


def _float_bytes(checkpoint: Checkpoint) -> int:
    graph, _ = checkpoint_graph(checkpoint)
    return 4 * sum(int(np.prod(spec.shape, dtype=object)) for spec in graph.weights.values())


def can_sample(checkpoint: Checkpoint) -> bool:
    """Return whether the model is small enough to write its own calibration text on this machine."""
    return _float_bytes(checkpoint) <= SAMPLING_LIMIT_BYTES


def sample_ids(checkpoint: Checkpoint, *, tokens: int, vocab_limit: int, seed: int, length: int = 256) -> I32:
    """Draw about ``tokens`` ids from the float model and return them as int32 [sequences, length].

    Each sequence begins with BOS, or with a random id if the model has no BOS.

    Source: LLM-QAT (2305.17888): a model's own text calibrates it about as well as its training data.

    Raises:
        UsageError: the float weights exceed ``SAMPLING_LIMIT_BYTES``.
    """
    if not can_sample(checkpoint):
        raise UsageError(
            f"{checkpoint.source}: calibration text cannot be sampled from {format_bytes(_float_bytes(checkpoint))} of "
            f"float weights (the limit is {format_bytes(SAMPLING_LIMIT_BYTES)}); pass --calibration FILE or none"
        )
    graph, sources = checkpoint_graph(checkpoint)
    length = min(length, context_size(checkpoint.config))
    interpreter = BatchInterpreter(graph, cache(tensor_loader(checkpoint, sources)))
    rng = np.random.default_rng(seed)
    total, parts = max(1, -(-tokens // length)), []
    for start in range(0, total, _SEQUENCES_AT_ONCE):
        sequences = min(_SEQUENCES_AT_ONCE, total - start)
        parts.append(_sample(interpreter, sequences, length, checkpoint.bos_token_id, vocab_limit, rng))
    return np.concatenate(parts)


def _sample(
    interpreter: BatchInterpreter,
    sequences: int,
    length: int,
    bos: int | None,
    vocab_limit: int,
    rng: np.random.Generator,
) -> I32:
    """Draw ids int32 [sequences, length]. Sampling continues past an end token with the next document, as in training."""
    ids = np.empty((sequences, length), np.int32)
    ids[:, 0] = rng.integers(0, vocab_limit, sequences) if bos is None else bos
    past = BatchCache(sequences=sequences, positions=length)
    for at in range(1, length):
        logits = interpreter.logits(ids[:, at - 1 : at], past)[:, :vocab_limit].astype(np.float64)
        # Gumbel-max: argmax(logits + noise) is a draw from softmax(logits).
        ids[:, at] = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return ids


def cut_windows(ids: I32, *, length: int, bos: int | None) -> list[I32]:
    """Cut a text's ids int32 [n] into windows of at most ``length`` that begin with BOS, so that each id is scored once.

    Without a BOS each window repeats the last id of the preceding window.
    """
    body = ids[1:] if bos is not None and len(ids) and ids[0] == bos else ids
    step = length - 1
    if bos is not None:
        return [np.concatenate([[bos], body[i : i + step]]).astype(np.int32) for i in range(0, len(body), step)]
    return [body[i : i + length] for i in range(0, len(body) - 1, step)]


def full_windows(windows: Sequence[I32]) -> I32:
    """Return the windows that are as long as the first, as int32 [sequences, length], the form calibration takes."""
    return np.stack([window for window in windows if len(window) == len(windows[0])])


def float_perplexity(checkpoint: Checkpoint, windows: Sequence[I32], *, vocab_limit: int) -> float:
    """Return the float model's perplexity: exp of the mean negative log-likelihood of the ids.

    Every id counts except the first of each window.
    """
    graph, sources = checkpoint_graph(checkpoint)
    small = can_sample(checkpoint)
    loader = tensor_loader(checkpoint, sources)
    interpreter = BatchInterpreter(graph, cache(loader) if small else loader)
    nats, count = 0.0, 0
    for batch in _batches(windows):
        seen, targets = batch[:, :-1], batch[:, 1:].reshape(-1)
        logits = interpreter.logits(seen)[:, :vocab_limit].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        nats += float(np.log(np.exp(logits).sum(axis=1)).sum() - logits[np.arange(len(targets)), targets].sum())
        count += len(targets)
    return float(np.exp(nats / count))


def _batches(windows: Sequence[I32]) -> Iterator[I32]:
    """Yield windows of equal length together, int32 [sequences, length], so that each tensor is read few times."""
    by_length = sorted(windows, key=len)
    for length, group in groupby(by_length, key=len):
        together = list(group)
        step = max(1, _ROWS_AT_ONCE // length)
        for start in range(0, len(together), step):
            yield np.stack(together[start : start + step])
