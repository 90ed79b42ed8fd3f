"""Compare adaptive trigrams with a dictionary."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.runtime.drafters.trigram import CAP, RECENT, STEP, SUCCESSORS, VISITS
from edgedec.runtime.protocols import Limits
from tests.runtime.drafters.support.bench_rounds import LIMITS, ask, open_draft, play, tell


class Weights:
    """Keep every trigram's weight, and compute what 150 visits from the root reach."""

    def __init__(self) -> None:
        self.weights: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)

    def sight(self, tokens: list[int]) -> None:
        for pair, token in zip(pairwise(tokens), tokens[2:], strict=False):
            successors = self.weights[pair]
            successors[token] = min(CAP, successors.get(token, 0.0) + STEP)

    def guess(self, text: list[int], path: list[int]) -> dict[int, float] | None:
        """Return the guess, or None if rounding decides whether a visit is a whole one."""
        tokens, visits = [*text, *path], float(VISITS)
        for at, token in enumerate(path, start=len(text)):
            successors = self.weights.get((tokens[at - 2], tokens[at - 1]), {})
            visits *= successors.get(token, 0.0) / sum(successors.values()) if successors else 0.0
        successors = self.weights.get((tokens[-2], tokens[-1]), {})
        total = sum(successors.values())
        reached = {token: visits * weight / total for token, weight in successors.items()}
        if any(abs(count - 1) < 1e-3 for count in reached.values()):
            return None
        successors = {token: weight for token, weight in successors.items() if reached[token] >= 1}
        return {token: weight / sum(successors.values()) for token, weight in successors.items()}


@pytest.mark.thorough
@settings(max_examples=80)
@given(data=st.data())
def test_weights_equal_the_dictionary_after_any_calls(data: Any) -> None:
    tokens, draft, slow = st.integers(0, 3), open_draft("trigram"), Weights()
    text = data.draw(st.lists(tokens, min_size=2, max_size=30))
    slow.sight(text)
    ask(draft, text)
    for _ in range(6):
        assumed = [*text, *data.draw(st.lists(tokens, max_size=LIMITS.depth + 1))]
        for known_text in (assumed, text):
            path = data.draw(st.lists(tokens, max_size=LIMITS.depth - 1))
            guess, expected = ask(draft, known_text, path), slow.guess(known_text, path)
            assert expected is None or guess == pytest.approx(expected, abs=1e-5)
        path = data.draw(st.lists(tokens, max_size=LIMITS.depth))
        accepted = data.draw(st.integers(0, len(path)))
        text = tell(draft, text, path, accepted, data.draw(tokens))
        slow.sight(text[-max(RECENT, accepted + 3) :])


def test_recent_trigrams_gain_until_the_cap() -> None:
    draft = open_draft("trigram")
    text = [1, 2, 3, *range(10, 10 + RECENT), 1, 2, 4, 1, 2]
    assert ask(draft, text) == pytest.approx({3: 0.5, 4: 0.5})
    for _ in range(200):  # a text of 4 after 1, 2
        ask(draft, text)
        text = tell(draft, text, [], 0, {1: 2, 2: 4, 4: 1}[text[-1]])
    assert ask(draft, [1, 2]) == pytest.approx({3: STEP / (CAP + STEP), 4: CAP / (CAP + STEP)}, rel=1e-3)


def test_twelve_successors_are_kept_and_the_lightest_is_dropped() -> None:
    draft = open_draft("trigram", Limits(nodes=8, depth=4, positions=256))
    text = [token for last in range(10, 10 + SUCCESSORS) for token in (1, 2, last, 1, 2, last)]
    ask(draft, [*text, 1, 2, 40, 1, 2, 41])
    guess = ask(draft, [*text, 1, 2, 40, 1, 2, 41, 1, 2])  # an assumption, not learned
    assert sorted(guess) == [*range(11, 10 + SUCCESSORS), 41]


def test_a_long_prompt_teaches_all_its_trigrams() -> None:
    prompt = np.random.default_rng(2).integers(0, 40, 700).tolist()
    draft, slow = open_draft("trigram", Limits(nodes=8, depth=4, positions=1024)), Weights()
    slow.sight(prompt)
    ask(draft, prompt)
    for pair in list(slow.weights):
        assert ask(draft, [*prompt, *pair]) == pytest.approx(slow.guess([*prompt, *pair], []), abs=1e-5)


def test_a_prompt_teaches_once_and_another_text_again() -> None:
    draft = open_draft("trigram")
    for _ in range(3):
        ask(draft, [1, 2, 3, 1, 2, 4, 1, 2, 4])
    assert ask(draft, [7, 7, 1, 2]) == pytest.approx({3: 1 / 3, 4: 2 / 3})
    ask(draft, [1, 2, 3, 9, 9, 9, 9, 9, 9])
    assert ask(draft, [1, 2]) == pytest.approx({3: 1 / 2, 4: 1 / 2})


def test_what_less_than_one_visit_reaches_is_not_proposed() -> None:
    draft = open_draft("trigram", Limits(nodes=8, depth=8, positions=2048))
    ask(draft, [*[1, 2, 3] * 60, 1, 2, 4, 5, *[7, 2, 4, 6] * 3])
    assert ask(draft, [1, 2]) == pytest.approx({3: 60 / 61, 4: 1 / 61})
    assert ask(draft, [2, 4]) == pytest.approx({5: 1 / 4, 6: 3 / 4})
    assert ask(draft, [1, 2], [4]) == {6: 1.0}  # 150/61 visits, 0.6 for 5
    assert ask(draft, [1, 2], [6]) == {}  # a token that no visit reaches


@pytest.mark.parametrize("text", [[1], [1, 2]])
def test_a_text_without_a_trigram_has_no_guess(text: list[int]) -> None:
    assert ask(open_draft("trigram"), text) == {}


def test_ids_outside_of_the_vocabulary_are_not_proposed() -> None:
    draft = open_draft("trigram", vocab=5)
    text = [1, 2, 5, 1, 2, -1, 1, 2]
    assert ask(draft, text) == {}
    assert ask(draft, [*text, 3, 5, 1, 2, 5, 1]) == {2: 1.0}  # though they may come before


def test_a_repeated_answer_is_accepted_whole() -> None:
    answer = list(range(10, 40))
    played = play(open_draft("trigram"), [1, *answer, 2], answer)
    assert played.rounds == 2 + -(-(len(answer) - 2) // (LIMITS.depth + 1))
