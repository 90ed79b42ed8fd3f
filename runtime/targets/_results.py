"""Common parts of targets: a finished ticket, checks of a pass, and top-k."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgedec.errors import EdgedecError, UnsupportedError, UsageError
from edgedec.runtime import visibility
from edgedec.runtime.protocols import F32, I32, Limits, Pass, PassResult, TargetInfo

__all__ = ["FinishedTicket", "check_pass", "check_positions", "top_k"]


@dataclass(frozen=True)
class FinishedTicket:
    """A ticket of passes that ran while they were submitted."""

    results: list[PassResult]

    def result(self) -> list[PassResult]:
        """Return the results."""
        return self.results


def top_k(logits: F32, k: int, ids: int) -> tuple[I32, F32] | None:
    """Return the ids, int32 [r, k], and the logits, [r, k], of the k largest logits of each row in descending order.

    Only the first ``ids`` columns count, the tokenizer's ids; the others pad the vocabulary. For k = 0 the result is None.
    """
    if not k:
        return None
    logits = logits[:, :ids]
    k = min(k, logits.shape[1])
    largest = np.argpartition(-logits, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(logits, largest, 1), axis=1, kind="stable")
    best = np.take_along_axis(largest, order, 1)
    return best.astype(np.int32), np.take_along_axis(logits, best, 1)


def check_pass(work: Pass, length: int, limits: Limits, info: TargetInfo) -> None:
    """Check a pass over ``length`` committed rows against the limits and against the masks that the target supports.

    Raises:
        EdgedecError: the pass has no or too many rows, rows or positions exceed the context, an id is outside the
            vocabulary and ``embeds``, or ``visible`` is not a mask of the pass.
        UnsupportedError: the mask has a wider form than ``info.masks``.
    """
    n = len(work.ids)
    if not 1 <= n <= limits.nodes:
        raise EdgedecError(f"a pass must have 1 to {limits.nodes} rows, not {n}; split it or raise limits.nodes")
    if length + n > limits.positions:
        raise EdgedecError(f"the context is full: {length} + {n} rows, limit {limits.positions}; raise --ctx-size")
    if int(work.positions.min()) < 0 or int(work.positions.max()) >= limits.positions:
        raise EdgedecError(f"positions must be in 0..{limits.positions - 1}, not up to {int(work.positions.max())}")
    embeds = 0 if work.embeds is None else len(work.embeds)
    low, high = int(work.ids.min()), int(work.ids.max())
    if high >= info.vocab or low < -embeds:
        raise EdgedecError(f"token ids must be in {-embeds}..{info.vocab - 1}, not {low}..{high}")
    if work.visible is not None:
        form = visibility.form(work.visible, n)
        if visibility.FORMS.index(form) > visibility.FORMS.index(info.masks):
            raise UnsupportedError(
                f"this target computes masks of the form {info.masks!r}, and the pass has one of the form {form!r}; "
                "split the pass, or use --device cpu with the CPU kernels (edgedec doctor) or --device float_reference"
            )


def check_positions(work: Pass, least: int) -> None:
    """Check that no row of a pass would see rows that a ring has dropped. The rows of texts never do.

    Raises:
        UsageError: a position is less than ``least``.
    """
    if least and (first := int(work.positions.min())) < least:
        raise UsageError(
            f"position {first} would see rows that the sequence has dropped, because they are outside of every window of "
            f"later positions; give positions of {least} or more, or truncate the sequence first"
        )
