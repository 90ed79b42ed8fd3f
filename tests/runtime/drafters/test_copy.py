"""Compare copying with a slow account of the same rules, and run it on edits of a text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.runtime.drafters.copy import LEAST, MOST, NEAR, REACH, RECOVERY, SURE
from edgedec.runtime.protocols import Limits
from tests.runtime.drafters.support.bench_rounds import LIMITS, VOCAB, Played, ask, open_draft, play, run, tell

SOURCE = np.random.default_rng(4).permutation(np.arange(1, 49)).tolist()  # every token once
WIDE = Limits(nodes=40, depth=32, positions=512)


class Account:
    """Follow the place of the copying after each token, by the rules in the drafter's docstring, written out slowly."""

    def __init__(self, source: list[int]) -> None:
        self.source, self.text = source, list(source)
        self.run = self.grip = self.since = 0
        self.need = LEAST
        self.home: int | None = None
        self.cursor: int | None = None
        self.anchor()

    def agreement(self, place: int) -> int:
        """Return the number of tokens that the text's end shares with the source up to ``place``, except for its own
        end.
        """
        size = 0
        while size < MOST and size <= place and self.source[place - size] == self.text[-1 - size]:
            size += 1
        return size

    def anchor(self) -> None:
        home = 0 if self.home is None else self.home
        places = [place for place in range(len(self.source) - 1) if self.agreement(place) >= self.need]
        if places:
            best = max(self.agreement(place) for place in places)
            places = [place for place in places if self.agreement(place) == best]
            later = [place for place in places if place >= home]
            self.cursor, self.run = (min(later) if later else max(places)) + 1, best
        elif self.home is not None and self.since < RECOVERY:
            near = [at for at in range(home, home + NEAR) if at < len(self.source) - 1]
            near = [at for at in near if self.source[at] == self.text[-1]]
            if near:
                self.cursor, self.run = near[0] + 1, 1
            elif self.since == 0 and home + 1 < len(self.source):
                self.cursor, self.run = home + 1, 0
        self.grip = self.run

    def take(self, token: int) -> None:
        self.text.append(token)
        self.since += 1
        if self.cursor is not None and self.source[self.cursor] == token:
            self.run += 1
            if self.run - self.grip >= SURE:
                self.need = LEAST
            self.cursor = self.cursor + 1 if self.cursor + 1 < len(self.source) else None
            return
        if self.cursor is not None:
            if self.run == self.grip >= LEAST:
                self.need = min(MOST, self.need + 1)
            if self.run >= SURE:
                self.home, self.since = self.cursor, 0
        self.cursor, self.run, self.grip = None, 0, 0
        self.anchor()

    def guess(self) -> dict[int, float]:
        return {} if self.cursor is None else {self.source[self.cursor]: 1.0}


def expected(source: list[int], answer: list[int], path: list[int]) -> dict[int, float]:
    account = Account(source)
    for token in answer:
        account.take(token)
    if len(path) >= REACH * max(1, account.run):
        return {}
    for token in path:
        account.take(token)
    return account.guess()


@pytest.mark.thorough
@settings(max_examples=120)
@given(data=st.data(), vocab=st.integers(2, 12))
def test_copying_follows_the_account_after_any_calls(data: Any, vocab: int) -> None:
    tokens = st.integers(0, vocab - 1)
    source = data.draw(st.lists(tokens, min_size=1, max_size=30))
    draft, answer = open_draft("copy"), list[int]()
    for _ in range(8):
        guess = run(draft, [*source, *answer])
        wild = data.draw(st.lists(tokens, max_size=LIMITS.depth - 1))
        for path in (wild, guess[:-1], []):
            assert ask(draft, [*source, *answer], path) == expected(source, answer, path)
        accepted = data.draw(st.integers(0, len(guess)))
        answer = tell(draft, [*source, *answer], guess, accepted, data.draw(tokens))[len(source) :]


def copied(answer: list[int], limits: Limits = WIDE) -> Played:
    return play(open_draft("copy", limits), [0, *SOURCE, 0], answer, limits)


def test_a_verbatim_copy_is_proposed_in_growing_runs() -> None:
    played = copied(SOURCE)
    assert [len(path) for path in played.runs] == [0, 8, 32, 6]  # two tokens determine the place
    assert played.accepted == len(SOURCE) - played.rounds


@pytest.mark.parametrize("change", ["replaced", "left out", "put in", "two put in", "three replaced"])
def test_copying_continues_after_a_small_change(change: str) -> None:
    begin, end = SOURCE[:20], SOURCE[20:]
    answer = {
        "replaced": [*begin, 0, *end[1:]],
        "left out": [*begin, *end[3:]],
        "put in": [*begin, 0, *end],
        "two put in": [*begin, 0, 49, *end],
        "three replaced": [*begin, 0, 49, 0, *end[3:]],
    }[change]
    played = copied(answer)
    assert played.accepted >= len(answer) - 12
    assert played.rounds <= 12


def test_after_a_change_the_nearest_later_place_is_used() -> None:
    source = [1, 2, 9, 10, 11, 12, 3, 4, 5, 6, 7, 30, 1, 2, 40, 1, 2, 50, 0]
    draft = open_draft("copy")
    text = [*source, 3, 4, 5, 6, 7]
    for end in range(len(source), len(text) + 1):
        ask(draft, text[:end])
    assert ask(draft, [*text, 20, 1, 2]) == {40: 1.0}  # neither 9, the first, nor 50, the last


def test_chance_matches_are_soon_dropped() -> None:
    rng = np.random.default_rng(1)
    source, answer = rng.integers(0, 8, 60).tolist(), rng.integers(0, 8, 60).tolist()
    played = play(open_draft("copy"), source, answer)
    naive = play(open_draft("ngram"), source, answer)
    assert played.drafted < naive.drafted / 2
    assert copied(rng.integers(0, 49, 60).tolist()).drafted < 60


def test_another_conversation_starts_copying_anew() -> None:
    draft = open_draft("copy")
    play(draft, [0, *SOURCE, 0], SOURCE)
    shifted = [token + 1 for token in SOURCE[:30]]
    assert ask(draft, [*shifted, 0, *shifted[4:6]]) == {shifted[6]: 1.0}
    fresh = open_draft("copy")
    text = [*shifted, 0]
    for token in shifted[:5]:
        assert ask(draft, text) == ask(fresh, text)
        text = tell(draft, text, [], 0, token)
        tell(fresh, text[:-1], [], 0, token)


def test_the_next_question_is_input_too() -> None:
    draft = open_draft("copy")
    text = [0, 1, 2, 3]
    assert ask(draft, text) == {}
    text = tell(draft, text, [], 0, 4)
    question = [*text, *SOURCE[10:30], 0]
    ask(draft, question)
    question = tell(draft, tell(draft, question, [], 0, SOURCE[12]), [], 0, SOURCE[13])
    assert ask(draft, question) == {SOURCE[14]: 1.0}


def test_an_assumed_text_is_not_taken_for_input() -> None:
    draft, second_draft = open_draft("copy"), open_draft("copy")
    text = [*SOURCE, 0, 49, 0]
    ask(draft, text), ask(second_draft, text)
    ask(draft, [*text, 31, 32, 33])
    text = tell(draft, text, [], 0, 5)
    tell(second_draft, text[:-1], [], 0, 5)
    for end in ([31, 32], [5, 31, 32], [49, 0, 5]):
        assert ask(draft, [*text, *end]) == ask(second_draft, [*text, *end])


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_ids_outside_of_the_vocabulary_are_not_proposed(token: int) -> None:
    draft = open_draft("copy")
    ask(draft, [1, 2, token, 4, 5, 0])
    assert ask(draft, [1, 2, token, 4, 5, 0, 1, 2]) == {}
    assert ask(draft, [1, 2, token, 4, 5, 0, 1, 2], [token]) == {4: 1.0}


def test_the_beginning_of_a_text_longer_than_the_context_is_forgotten() -> None:
    limits = Limits(nodes=8, depth=4, positions=64)
    draft = open_draft("copy", limits)
    played = play(draft, [0, *SOURCE, 0], [*SOURCE, *SOURCE], limits)
    assert played.accepted > 10
    assert ask(draft, [0, *SOURCE, 0, *SOURCE, *SOURCE, *SOURCE, *SOURCE[:4]]) in ({}, {SOURCE[4]: 1.0})
    assert ask(draft, [0, *SOURCE, 0, *SOURCE[:4]]) == {SOURCE[4]: 1.0}  # and it can go back
