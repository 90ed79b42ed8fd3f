"""Token ids for calibration and for the quality table, and the float model's own score on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.families import context_size
from edgedec.memory import format_bytes
from edgedec.quantize.batch_interpreter import BatchCache, Interpreter
from edgedec.quantize.pipeline import checkpoint_graph, tensor_loader
from edgedec.quantize.readers import Checkpoint

__all__ = ["SAMPLING_LIMIT_BYTES", "can_sample", "cut_windows", "float_perplexity", "full_windows", "sample_ids"]

I32 = NDArray[np.int32]

SAMPLING_LIMIT_BYTES = 512 << 20  # of float32 weights, which sampling holds in memory
_SEQUENCES_AT_ONCE = 64
_ROWS_AT_ONCE = 2048  # whose logits are held in float64


def _float_bytes(checkpoint: Checkpoint) -> int:
    graph, _ = checkpoint_graph(checkpoint)
    return 4 * sum(int(np.prod(spec.shape, dtype=object)) for spec in graph.weights.values())


def can_sample(checkpoint: Checkpoint) -> bool:
    """Whether the model is small enough to write its own calibration text here."""
    return _float_bytes(checkpoint) <= SAMPLING_LIMIT_BYTES


def sample_ids(checkpoint: Checkpoint, *, tokens: int, vocab_limit: int, seed: int, length: int = 256) -> I32:
    """About ``tokens`` ids drawn from the float model: int32 [sequences, length], BOS first.

    Source: LLM-QAT (2305.17888): a model's own text calibrates it about as well as its training data.

    Raises:
        UsageError: the float weights do not fit ``SAMPLING_LIMIT_BYTES``.
    """
    if not can_sample(checkpoint):
        raise UsageError(
            f"{checkpoint.source}: {format_bytes(_float_bytes(checkpoint))} of float weights are too many to sample "
            f"calibration text from (limit {format_bytes(SAMPLING_LIMIT_BYTES)}); pass --calibration FILE or none"
        )
    graph, sources = checkpoint_graph(checkpoint)
    length = min(length, context_size(checkpoint.config))
    interpreter = Interpreter(graph, cache(tensor_loader(checkpoint, sources)))
    rng = np.random.default_rng(seed)
    wanted, parts = max(1, -(-tokens // length)), []
    for start in range(0, wanted, _SEQUENCES_AT_ONCE):
        sequences = min(_SEQUENCES_AT_ONCE, wanted - start)
        parts.append(_sample(interpreter, sequences, length, checkpoint.bos_token_id, vocab_limit, rng))
    return np.concatenate(parts)


def _sample(
    interpreter: Interpreter, sequences: int, length: int, bos: int | None, vocab_limit: int, rng: np.random.Generator
) -> I32:
    """A sequence goes on past an end token: what follows is the next document, as in training."""
    ids = np.empty((sequences, length), np.int32)
    ids[:, 0] = rng.integers(0, vocab_limit, sequences) if bos is None else bos
    past = BatchCache(sequences=sequences, positions=length)
    for at in range(1, length):
        logits = interpreter.logits(ids[:, at - 1 : at], past)[:, :vocab_limit].astype(np.float64)
        # Gumbel-max: argmax(logits + noise) is a draw from softmax(logits).
        ids[:, at] = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return ids


def cut_windows(ids: I32, *, length: int, bos: int | None) -> list[I32]:
    """A text's ids int32 [n] as windows of at most ``length`` that begin with BOS, so that each id is scored once.

    Without a BOS each window repeats the last id of the one before it.
    """
    body = ids[1:] if bos is not None and len(ids) and ids[0] == bos else ids
    step = length - 1
    if bos is not None:
        return [np.concatenate([[bos], body[i : i + step]]).astype(np.int32) for i in range(0, len(body), step)]
    return [body[i : i + length] for i in range(0, len(body) - 1, step)]


def full_windows(windows: Sequence[I32]) -> I32:
    """Those as long as the first, as int32 [sequences, length]: what calibration takes."""
    return np.stack([window for window in windows if len(window) == len(windows[0])])


def float_perplexity(checkpoint: Checkpoint, windows: Sequence[I32], *, vocab_limit: int) -> float:
    """exp of the mean negative log-likelihood of every id but the first of each window, under the float model."""
    graph, sources = checkpoint_graph(checkpoint)
    small = can_sample(checkpoint)
    loader = tensor_loader(checkpoint, sources)
    interpreter = Interpreter(graph, cache(loader) if small else loader)
    nats, count = 0.0, 0
    for batch in _batches(windows):
        seen, wanted = batch[:, :-1], batch[:, 1:].reshape(-1)
        logits = interpreter.logits(seen)[:, :vocab_limit].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        nats += float(np.log(np.exp(logits).sum(axis=1)).sum() - logits[np.arange(len(wanted)), wanted].sum())
        count += len(wanted)
    return float(np.exp(nats / count))


def _batches(windows: Sequence[I32]) -> Iterator[I32]:
    """Windows of equal length together, so that each tensor is read few times: int32 [sequences, length]."""
    by_length = sorted(windows, key=len)
    for length, group in groupby(by_length, key=len):
        together = list(group)
        step = max(1, _ROWS_AT_ONCE // length)
        for start in range(0, len(together), step):
            yield np.stack(together[start : start + step])
