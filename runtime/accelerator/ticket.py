"""The ticket of a pass on an accelerator, and what a pass asks of the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime.protocols import I32, Pass, PassResult
from edgedec.runtime.visibility import unpack

__all__ = ["ProgramTicket", "logit_rows", "visible"]


class ProgramTicket:
    """A pass that was submitted. ``result`` waits for it and may be called again.

    Args:
        finish: called once with the ticket; waits for the pass and returns its result.
    """

    def __init__(self, finish: Callable[[ProgramTicket], PassResult]) -> None:
        self._finish = finish
        self._result: PassResult | None = None

    def result(self) -> list[PassResult]:
        if self._result is None:
            self._result = self._finish(self)
        return [self._result]

    def copied(self) -> PassResult:
        """Return the result in memory that the next pass does not overwrite."""
        (result,) = self.result()
        self._result = replace(result, logits=result.logits.copy())
        return self._result


def logit_rows(work: Pass) -> I32:
    """Return the rows of a pass whose logits it returns, int32 [r]."""
    return np.array([len(work.ids) - 1], np.int32) if work.logits is None else work.logits


def visible(work: Pass) -> NDArray[np.bool_] | None:
    """Return the mask of a pass, bool [n, n]; None if it is causal."""
    return None if work.visible is None else unpack(work.visible, len(work.ids))
