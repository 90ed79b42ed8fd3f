"""Common parts of targets: a finished ticket, and checks of a pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgedec.errors import EdgedecError, UnsupportedError, UsageError
from edgedec.runtime import visibility
from edgedec.runtime.protocols import F32, Limits, Pass, PassResult, TargetInfo

__all__ = ["FinishedTicket", "check_pass", "check_positions"]


@dataclass(frozen=True)
class FinishedTicket:
    """A ticket of passes that ran while they were submitted."""

    results: list[PassResult]

    def result(self) -> list[PassResult]:
        """Return the results."""
        return self.results


def check_pass(work: Pass, length: int, limits: Limits, info: TargetInfo) -> None:
    """Check a pass over ``length`` committed rows against the limits and against the masks that the target supports.

    Raises:
        EdgedecError: the pass has no or too many rows, rows or positions exceed the context, an id is outside the
            vocabulary and ``embeds``, ``visible`` is not a mask of the pass, or ``features`` are not those that the model
            reads.
        UnsupportedError: the mask has a wider form than ``info.masks``.
        UsageError: ``top_k`` is negative, or 0 although the pass asks for ``log_sum``.
    """
    if work.top_k < work.log_sum:
        raise UsageError(
            f"Pass.top_k must be 0 or more, and for Pass.log_sum, which comes with the likeliest tokens, 1 or more, not "
            f"{work.top_k}"
        )
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
    if work.features is not None or info.features:
        _check_features(work.features, n, info.features)
    if work.visible is not None:
        form = visibility.form(work.visible, n)
        if visibility.FORMS.index(form) > visibility.FORMS.index(info.masks):
            raise UnsupportedError(
                f"this target computes masks of the form {info.masks!r}, and the pass has one of the form {form!r}; "
                "split the pass, or use --device cpu with the CPU kernels (edgedec doctor) or --device float_reference"
            )


def _check_features(features: F32 | None, rows: int, width: int) -> None:
    """Check that a pass of ``rows`` rows has the features of a model that reads ``width`` of them in each row.

    Raises:
        UsageError: it has none, or has some and the model reads none, or their shape or type is another one.
        EdgedecError: a value is NaN or infinite.
    """
    if features is None:
        if width:
            raise UsageError(
                f"the model needs features float32 [{rows}, {width}] beside the ids, and the pass has none; only a drafter "
                "that computes them can run it"
            )
        return
    if not width:
        raise UsageError("the pass has features, and the model reads none beside the ids; leave Pass.features None")
    if features.shape != (rows, width) or features.dtype != np.float32:
        raise UsageError(
            f"features must be float32 [{rows}, {width}], a row for each id, not {features.dtype} {list(features.shape)}"
        )
    if not np.isfinite(features).all():
        row, column = np.argwhere(~np.isfinite(features))[0]
        raise EdgedecError(
            f"features must be finite, and row {row} has {features[row, column]} in column {column}; the pass that they "
            "were made from is at fault (edgedec doctor)"
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
