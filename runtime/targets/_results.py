"""Small pieces of every target: an already finished ticket, checked passes, top-k."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgedec.errors import EdgedecError
from edgedec.runtime.protocols import F32, I32, Limits, Pass, PassResult

__all__ = ["Done", "check_pass", "top_k"]


@dataclass(frozen=True)
class Done:
    """A ticket whose work was done when it was submitted."""

    results: list[PassResult]

    def result(self) -> list[PassResult]:
        return self.results


def top_k(logits: F32, k: int, ids: int) -> tuple[I32, F32] | None:
    """The k largest of each row, largest first: ids int32 [r, k] and logits [r, k]; None for k = 0.

    ``ids``: so many the tokenizer has. Those after them pad the vocabulary and are not looked at: their logits mean nothing.
    """
    if not k:
        return None
    logits = logits[:, :ids]
    k = min(k, logits.shape[1])
    found = np.argpartition(-logits, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(logits, found, 1), axis=1, kind="stable")
    best = np.take_along_axis(found, order, 1)
    return best.astype(np.int32), np.take_along_axis(logits, best, 1)


def check_pass(work: Pass, length: int, limits: Limits, vocab: int) -> None:
    """Refuse a pass that the state cannot hold.

    Raises:
        EdgedecError: too many rows, rows or positions past the context, or ids outside the vocabulary.
    """
    n = len(work.ids)
    if not 1 <= n <= limits.nodes:
        raise EdgedecError(f"a pass must have 1 to {limits.nodes} rows, not {n}; split it or raise limits.nodes")
    if length + n > limits.positions:
        raise EdgedecError(f"the context is full: {length} + {n} rows, limit {limits.positions}; raise --ctx-size")
    if int(work.positions.min()) < 0 or int(work.positions.max()) >= limits.positions:
        raise EdgedecError(f"positions must be in 0..{limits.positions - 1}, not up to {int(work.positions.max())}")
    given = 0 if work.embeds is None else len(work.embeds)
    low, high = int(work.ids.min()), int(work.ids.max())
    if high >= vocab or low < -given:
        raise EdgedecError(f"token ids must be in {-given}..{vocab - 1}, not {low}..{high}")
