"""The mean of what its sources guess."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.drafters.rounds import LIMITS, ask, open_draft, tell

SOURCES = ("copy", "ngram", "stand", "trigram")
MOST = 8


def mean(found: list[dict[int, float]]) -> dict[int, float]:
    given_ = [guess for guess in found if guess]
    total: dict[int, float] = {}
    for guess in given_:
        for token, prob in guess.items():
            total[token] = total.get(token, 0.0) + prob / len(given_)
    best = dict(sorted(total.items(), key=lambda item: -item[1])[:MOST])
    return {token: prob / sum(best.values()) for token, prob in best.items()}


@settings(max_examples=40)
@given(data=st.data(), vocab=st.integers(2, 6))
def test_it_is_the_mean_of_those_that_have_a_guess(data: Any, vocab: int) -> None:
    """Over rounds, so that the sources that learn from outcomes have something to say."""
    tokens = st.integers(0, vocab - 1)
    drafts = [open_draft(name) for name in ("blend", *SOURCES)]
    text = data.draw(st.lists(tokens, min_size=2, max_size=30))
    for _ in range(4):
        path = data.draw(st.lists(tokens, min_size=1, max_size=LIMITS.depth - 1))
        blended, *found = [ask(draft, text, path) for draft in drafts]
        expected = mean(found)
        assert blended == pytest.approx({token: expected.get(token, -1.0) for token in blended}, abs=1e-5)
        assert len(blended) == len(expected)
        token = data.draw(tokens)
        (text, *others) = [tell(draft, text, path, 1, token) for draft in drafts]
        assert all(other == text for other in others)


def test_without_a_guess_it_is_silent_and_agreement_is_certain() -> None:
    assert ask(open_draft("blend"), [1, 2, 3]) == {}
    assert ask(open_draft("blend"), [1, 2, 9, 4, 1, 2]) == {9: pytest.approx(1.0)}


def test_branches_come_from_sources_that_differ() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2]
    assert ask(open_draft("ngram"), text) == {4: 1.0}
    guesses = ask(open_draft("blend"), text)  # trigrams saw both
    assert set(guesses) == {3, 4}
    assert sum(guesses.values()) == pytest.approx(1)
