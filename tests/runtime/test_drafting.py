"""Test the drafting of several texts in step, with a target that counts its submissions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgedec.errors import DeviceError
from edgedec.runtime.drafting import alone, together
from edgedec.runtime.protocols import Drafting, DraftPass, Pass, PassResult, State
from edgedec.runtime.targets._results import FinishedTicket

ONE_ROW = Pass(ids=np.zeros(1, np.int32), positions=np.zeros(1, np.int32))


class Counting:
    """A target whose results are its memory: the number of the submission, which the next one overwrites."""

    def __init__(self, fails: int = 0) -> None:
        self.sizes: list[int] = []
        self._fails, self._memory = fails, np.zeros((1, 1), np.float32)

    def submit(self, work: Sequence[tuple[State, Pass]]) -> FinishedTicket:
        self.sizes.append(len(work))
        self._memory[:] = len(self.sizes)
        if len(self.sizes) == self._fails:
            raise DeviceError("the draft's device is gone")
        return FinishedTicket([PassResult(logits=self._memory, top=None, taps={}, seconds=0.0) for _ in work])


def passes(target: Any, count: int, fails_after: int = -1) -> Drafting[list[int]]:
    """Run ``count`` passes and return the number of the submission of each."""
    seen = []
    for number in range(count):
        if number == fails_after:
            raise ValueError("a text that cannot go on")
        result = yield DraftPass(target, None, ONE_ROW)  # type: ignore[arg-type]
        seen.append(int(result.logits[0, 0]))
    return seen


def test_passes_of_several_texts_are_one_submission_until_each_ends() -> None:
    target = Counting()
    assert together([passes(target, count) for count in (3, 1, 0, 5)]) == [[1, 2, 3], [1], [], [1, 2, 3, 4, 5]]
    assert target.sizes == [3, 2, 2, 1, 1]


def test_an_error_ends_one_text_alone() -> None:
    target = Counting()
    first, failed, last = together([passes(target, 2), passes(target, 9, fails_after=1), passes(target, 3)])
    assert (first, last) == ([1, 2], [1, 2, 3])
    assert isinstance(failed, ValueError)
    assert target.sizes == [3, 2, 1]


def test_a_failed_submission_ends_the_texts_in_it() -> None:
    short, *others = together([passes(target := Counting(fails=2), 1), passes(target, 2), passes(target, 3)])
    assert short == [1]
    assert [type(error) for error in others] == [DeviceError, DeviceError]
    assert target.sizes == [3, 2]


def test_a_text_may_survive_a_failed_submission() -> None:
    def stubborn(target: Any) -> Drafting[int]:
        try:
            yield from passes(target, 1)
        except DeviceError:
            return -1
        return 0

    assert together([stubborn(Counting(fails=1)), stubborn(Counting())]) == [-1, 0]


def test_each_target_has_submissions_of_its_own() -> None:
    one, other = Counting(), Counting()
    assert together([passes(one, 2), passes(other, 1), passes(one, 1)]) == [[1, 2], [1], [1]]
    assert (one.sizes, other.sizes) == ([2, 1], [1])


def test_one_text_has_the_value_or_the_error_of_its_drafting() -> None:
    assert alone(passes(Counting(), 2)) == [1, 2]
    with pytest.raises(DeviceError, match="gone"):
        alone(passes(Counting(fails=1), 1))
    with pytest.raises(ValueError, match="cannot go on"):
        alone(passes(Counting(), 2, fails_after=0))
