"""Compare prompt lookup with the obvious search."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.runtime.drafters.ngram import LEAST, MOST, TRIES
from edgedec.runtime.protocols import Limits
from tests.runtime.drafters.support.bench_rounds import LIMITS, VOCAB, ask, open_draft, play, run


def looked_up(tokens: list[int]) -> dict[int, float]:
    """Return the token after the last place of the longest suffix, slowly."""
    for size in range(min(MOST, len(tokens)), LEAST - 1, -1):
        suffix = tokens[len(tokens) - size :]
        for begin in range(len(tokens) - size - 1, -1, -1):
            if tokens[begin : begin + size] == suffix:
                return {tokens[begin + size]: 1.0}
    return {}


@pytest.mark.thorough
@settings(max_examples=120)
@given(data=st.data(), vocab=st.integers(1, 5))
def test_guesses_equal_the_obvious_search_after_any_calls(data: Any, vocab: int) -> None:
    tokens = st.integers(0, vocab - 1)
    draft = open_draft("ngram")
    text = data.draw(st.lists(tokens, min_size=1, max_size=40))
    for _ in range(6):
        path = data.draw(st.lists(tokens, max_size=LIMITS.depth - 1))
        assert ask(draft, text, path) == looked_up([*text, *path])
        cut = data.draw(st.integers(0, len(text)))  # the next round's text, a rejected one's, or a different one
        text = [*text[:cut], *data.draw(st.lists(tokens, min_size=cut == 0, max_size=10))][:60]


def test_the_longest_suffix_wins_and_the_last_of_equal_ones() -> None:
    draft = open_draft("ngram")
    assert ask(draft, [1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3]) == {4: 1.0}
    assert ask(draft, [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]) == {5: 1.0}
    assert ask(draft, [7, 3, 4, 8, 3]) == {}  # one token is not enough


def test_a_text_that_repeats_itself_is_followed_beyond_its_end() -> None:
    assert run(open_draft("ngram"), [5, 6, 7, 5, 6]) == [7, 5, 6, 7, 5, 6, 7, 5]


def test_a_branch_that_was_not_proposed_is_looked_up() -> None:
    text = [1, 2, 3, 4, 2, 8, 9, 6, 1, 2]
    assert ask(open_draft("ngram"), text, [3]) == {4: 1.0}
    assert ask(open_draft("ngram"), text, [8]) == {9: 1.0}


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_ids_outside_of_the_vocabulary_are_not_proposed(token: int) -> None:
    assert ask(open_draft("ngram"), [1, 2, token, 4, 1, 2]) == {}
    assert ask(open_draft("ngram"), [token, token, 3, token, token]) == {3: 1.0}  # though they may be looked for


@pytest.mark.parametrize("length", [16, 17, 25, 90])
def test_the_beginning_of_a_text_longer_than_the_context_is_forgotten(length: int) -> None:
    limits = Limits(nodes=8, depth=4, positions=16)
    text = np.random.default_rng(length).integers(0, 3, length).tolist()
    remembered = next(text[start:] for start in range(0, length, 8) if length - start <= 16)
    draft = open_draft("ngram", limits)
    for end in range(1, length):
        ask(draft, text[:end])
    assert ask(draft, text, [1, 0, 1]) == looked_up([*remembered, 1, 0, 1])
    assert ask(draft, text[:9], [1, 0, 1]) == looked_up([*text[:9], 1, 0, 1])  # and it can go back


def test_only_the_last_places_are_searched() -> None:
    long_text = [token for at in range(TRIES + 2) for token in (1, 2, 10 + at % 30)]
    limits = Limits(nodes=8, depth=4, positions=1024)
    assert ask(open_draft("ngram", limits), [7, 1, 2, 9, *long_text[: 3 * TRIES - 3], 7, 1, 2]) == {9: 1.0}
    assert ask(open_draft("ngram", limits), [7, 1, 2, 9, *long_text, 7, 1, 2]) != {9: 1.0}


def test_a_repeated_answer_is_accepted_whole() -> None:
    answer = list(range(10, 40))
    played = play(open_draft("ngram"), [1, *answer, 2], answer)
    assert played.rounds == 2 + -(-(len(answer) - 2) // (LIMITS.depth + 1))  # two tokens to find the place
