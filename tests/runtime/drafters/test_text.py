"""Test which part of a text is certain, and which tokens lead to a node."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.runtime.drafters._text import Confirmed, paths
from edgedec.runtime.protocols import Outcome, TokenTree
from tests.runtime.drafters.support.bench_rounds import chain


def outcome(accepted: int, token: int) -> Outcome:
    return Outcome(path=np.arange(accepted + 1, dtype=np.int32), next_token=token)


def met(confirmed: Confirmed, text: list[int]) -> int:
    return confirmed.meet(np.array(text, np.int32))


def test_paths_hold_the_tokens_that_lead_to_a_node() -> None:
    tree = TokenTree(tokens=np.array([9, 1, 2, 3, 4], np.int32), parents=np.array([-1, 0, 0, 1, 3], np.int32), draft={})
    assert list(paths(tree, np.array([4, 0, 2], np.int32))) == [[1, 3, 4], [], [2]]


def test_a_prompt_and_every_outcome_are_certain() -> None:
    confirmed = Confirmed(window=3, slack=4)
    assert met(confirmed, [1, 2, 3, 4]) == 4
    assert met(confirmed, [1, 2, 3, 4]) == 0
    assert confirmed.advance(chain([4], [5, 6, 7]), outcome(2, 8)) == [2, 3, 4, 5, 6, 8]
    assert (confirmed.length, confirmed.tail) == (7, [5, 6, 8])
    assert met(confirmed, [1, 2, 3, 4, 5, 6, 8]) == 0


@pytest.mark.parametrize(
    ("text", "fresh"),
    [
        ([1, 2, 3, 4, 9, 9, 9, 9], 0),  # an assumption
        ([1, 2, 3, 4, 9, 9, 9, 9, 9], 5),  # too long for one: the next question
        ([1, 2, 3], 3),  # shorter
        ([1, 2, 3, 5], 4),  # a different one
        ([1, 2, 3, 5, 9], 5),
        ([0, 2, 3, 4], 0),  # the window shows no difference
    ],
)
def test_any_other_text_is_new(text: list[int], fresh: int) -> None:
    confirmed = Confirmed(window=3, slack=4)
    met(confirmed, [1, 2, 3, 4])
    assert met(confirmed, text) == fresh


def test_an_outcome_of_an_unknown_text_starts_anew() -> None:
    confirmed = Confirmed(window=3, slack=4)
    assert confirmed.advance(chain([7], []), outcome(0, 8)) == [7, 8]
    assert met(confirmed, [6, 7, 8]) == 3
    confirmed.advance(chain([5], [6]), outcome(1, 7))  # the text ended in 8, not 5
    assert met(confirmed, [6, 7, 8]) == 3
