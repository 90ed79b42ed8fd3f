"""Text from the float model itself: calibration without data.

Source: LLM-QAT (2305.17888): text that a model generates calibrates it as well as its training data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.quantize.interpreter import BatchCache, Interpreter

__all__ = ["sample_sequences"]


def sample_sequences(
    interpreter: Interpreter,
    *,
    sequences: int,
    length: int,
    bos: int | None,
    vocab_limit: int,
    seed: int,
    temperature: float = 1.0,
) -> NDArray[np.int32]:
    """Sample int32 [sequences, length] from the float model, BOS (or a random token) first.

    A sequence goes on past an end token: what follows is the next document, as in training. Ids at and above
    ``vocab_limit`` are padding of the vocabulary and never drawn.
    """
    rng = np.random.default_rng(seed)
    first = rng.integers(0, vocab_limit, sequences) if bos is None else np.full(sequences, bos)
    ids = np.empty((sequences, length), np.int32)
    ids[:, 0] = first
    cache = BatchCache(sequences=sequences, positions=length)
    for at in range(1, length):
        logits = interpreter.logits(ids[:, at - 1 : at], cache)[:, :vocab_limit].astype(np.float64) / temperature
        # Gumbel-max: argmax(logits + noise) is a draw from softmax(logits).
        ids[:, at] = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return ids
