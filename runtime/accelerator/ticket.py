"""The ticket of a pass on an accelerator, and what a pass asks of the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime.protocols import I32, Pass, PassResult
from edgedec.runtime.visibility import unpack

__all__ = ["FollowingTicket", "ProgramTicket", "logit_rows", "visible"]


class ProgramTicket:
    """A pass of one sequence or several that was submitted. ``result`` waits for it and may be called again.

    Args:
        finish: called once with the ticket; waits for the pass and returns the results.
    """

    def __init__(self, finish: Callable[[ProgramTicket], list[PassResult]]) -> None:
        self._finish = finish
        self._results: list[PassResult] | None = None

    def result(self) -> list[PassResult]:
        if self._results is None:
            self._results = self._finish(self)
        return self._results

    def copied(self) -> list[PassResult]:
        """Return the results in memory that the next pass does not overwrite."""
        self._results = [replace(result, logits=result.logits.copy()) for result in self.result()]
        return self._results


class FollowingTicket:
    """The last of several passes that were submitted together, and the results of the others, which have run.

    Args:
        done: results of the others, pass by pass.
        last: the last one.
    """

    def __init__(self, done: Sequence[Sequence[PassResult]], last: ProgramTicket) -> None:
        self._done, self._last = done, last

    def result(self) -> list[PassResult]:
        passes = [*self._done, self._last.result()]
        seconds = sum(results[0].seconds for results in passes)  # each result has the duration of all of them
        return [replace(result, seconds=seconds) for results in passes for result in results]


def logit_rows(work: Pass) -> I32:
    """Return the rows of a pass whose logits it returns, int32 [r]."""
    return np.array([len(work.ids) - 1], np.int32) if work.logits is None else work.logits


def visible(work: Pass) -> NDArray[np.bool_] | None:
    """Return the mask of a pass, bool [n, n]; None if it is causal."""
    return None if work.visible is None else unpack(work.visible, len(work.ids))
