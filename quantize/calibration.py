"""Provide token ids for calibration and for the quality table, and measure the float model's perplexity on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.families import context_size
from edgedec.memory.byte_sizes import format_bytes
from edgedec.progress import Progress, silent
from edgedec.quantize.batch_interpreter import BatchCache, BatchInterpreter
from edgedec.quantize.pipeline import checkpoint_graph, tensor_loader
from edgedec.quantize.readers import Checkpoint

__all__ = [
    "SAMPLING_LIMIT_BYTES",
    "can_sample",
    "cut_windows",
    "float_perplexity",
    "full_windows",
    "sample_ids",
    "sample_scored",
]

I32 = NDArray[np.int32]

SAMPLING_LIMIT_BYTES = 512 << 20  # limit on the float32 weights, which sampling holds in memory
_SEQUENCES_AT_ONCE = 64
_ROWS_AT_ONCE = 2048  # rows of logits that are held in float64 at a time
_MOST_NATS = 700.0  # limit of the exponent, near the largest float


def _float_bytes(checkpoint: Checkpoint) -> int:
    graph, _ = checkpoint_graph(checkpoint)
    return 4 * sum(int(np.prod(spec.shape, dtype=object)) for spec in graph.weights.values())


def can_sample(checkpoint: Checkpoint) -> bool:
    """Return whether the model is small enough to write its own calibration text on this machine."""
    return _float_bytes(checkpoint) <= SAMPLING_LIMIT_BYTES


def sample_ids(
    checkpoint: Checkpoint,
    *,
    tokens: int,
    vocab_limit: int,
    seed: int,
    length: int = 256,
    progress: Progress = silent,
) -> I32:
    """Draw about ``tokens`` ids from the float model and return them as int32 [sequences, length].

    Each sequence begins with BOS, or with a random id if the model has no BOS. ``progress`` is called after each position
    with the tokens done and in all.

    Source: LLM-QAT (2305.17888): a model's own text calibrates it about as well as its training data.

    Raises:
        UsageError: the float weights exceed ``SAMPLING_LIMIT_BYTES``.
    """
    options = {"tokens": tokens, "vocab_limit": vocab_limit, "seed": seed, "length": length}
    return sample_scored(checkpoint, **options, progress=progress)[0]


def sample_scored(
    checkpoint: Checkpoint,
    *,
    tokens: int,
    vocab_limit: int,
    seed: int,
    length: int = 256,
    progress: Progress = silent,
) -> tuple[I32, float]:
    """Return the ids of ``sample_ids``, and the float model's perplexity on them.

    The perplexity costs hardly any time, because the model's distributions are there when the ids are drawn. It equals
    ``float_perplexity`` of the ids up to the rounding of float32.

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
    total, parts, nats = max(1, -(-tokens // length)), [], 0.0
    for start in range(0, total, _SEQUENCES_AT_ONCE):
        sequences = min(_SEQUENCES_AT_ONCE, total - start)

        def report(at: int, start: int = start, sequences: int = sequences) -> None:
            progress("tokens", start * length + sequences * at, total * length)

        drawn, found = _sample(interpreter, sequences, length, checkpoint.bos_token_id, vocab_limit, rng, report)
        parts.append(drawn)
        nats += found
    return np.concatenate(parts), float(np.exp(min(nats / (total * max(1, length - 1)), _MOST_NATS)))


def _sample(
    interpreter: BatchInterpreter,
    sequences: int,
    length: int,
    bos: int | None,
    vocab_limit: int,
    rng: np.random.Generator,
    report: Callable[[int], None],
) -> tuple[I32, float]:
    """Draw ids int32 [sequences, length], and return them with the sum of their negative log-likelihoods.

    Sampling continues past an end token with the next document, as in training.
    """
    ids = np.empty((sequences, length), np.int32)
    ids[:, 0] = rng.integers(0, vocab_limit, sequences) if bos is None else bos
    past, nats, rows = BatchCache(sequences=sequences, positions=length), 0.0, np.arange(sequences)
    for at in range(1, length):
        logits = interpreter.logits(ids[:, at - 1 : at], past)[:, :vocab_limit].astype(np.float64)
        # Gumbel-max: argmax(logits + noise) is a draw from softmax(logits).
        ids[:, at] = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        nats += _nats(logits, ids[:, at], rows)
        report(at + 1)
    return ids, nats


def _nats(logits: NDArray[np.float64], targets: I32, rows: NDArray[np.int_]) -> float:
    """Return the sum of the negative log-likelihoods of one target for each row. ``logits`` is changed."""
    logits -= logits.max(axis=1, keepdims=True)
    chosen = logits[rows, targets]
    return float(np.log(np.exp(logits, out=logits).sum(axis=1)).sum() - chosen.sum())


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


def float_perplexity(
    checkpoint: Checkpoint, windows: Sequence[I32], *, vocab_limit: int, progress: Progress = silent
) -> float:
    """Return the float model's perplexity: exp of the mean negative log-likelihood of the ids.

    Every id counts except the first of each window. ``progress`` is called after each operation of the graph, with
    the tokens done and in all.
    """
    graph, sources = checkpoint_graph(checkpoint)
    small = can_sample(checkpoint)
    loader = tensor_loader(checkpoint, sources)
    interpreter = BatchInterpreter(graph, cache(loader) if small else loader)
    nats, count, total = 0.0, 0, sum(len(window) - 1 for window in windows)
    for batch in _batches(windows):
        seen, targets = batch[:, :-1], batch[:, 1:].reshape(-1)

        def report(share: float, done: int = count, rows: int = len(targets)) -> None:
            progress("tokens", int(done + share * rows), total)

        logits = interpreter.logits(seen, report=report)[:, :vocab_limit].astype(np.float64)
        nats += _nats(logits, targets, np.arange(len(targets)))
        count += len(targets)
        progress("tokens", count, total)
    return float(np.exp(min(nats / count, _MOST_NATS)))


def _batches(windows: Sequence[I32]) -> Iterator[I32]:
    """Yield windows of equal length together, int32 [sequences, length], so that each tensor is read few times."""
    by_length = sorted(windows, key=len)
    for length, group in groupby(by_length, key=len):
        together = list(group)
        step = max(1, _ROWS_AT_ONCE // length)
        for start in range(0, len(together), step):
            yield np.stack(together[start : start + step])
