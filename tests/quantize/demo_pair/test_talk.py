"""Test conversations: requests name what the story holds, follow-ups are obeyed, and no question is asked twice."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache

import pytest

from edgedec.quantize.demo_pair import sketch_words, talk
from edgedec.quantize.demo_pair.sketch import sketch
from edgedec.quantize.demo_pair.talk import Turn, conversation, mood_requests, request
from edgedec.quantize.demo_pair.world import tale


@cache
def talks() -> tuple[tuple[Turn, ...], ...]:
    return tuple(tuple(conversation(seed)) for seed in range(1500))


@pytest.mark.thorough
def test_a_conversation_is_a_function_of_its_seed() -> None:
    assert [tuple(conversation(seed)) for seed in (9, 4)] == [talks()[9], talks()[4]]


@pytest.mark.thorough
def test_every_turn_has_an_answer_and_only_plain_texts_ask_nothing() -> None:
    for turns in talks():
        assert all(answer.strip() for _, answer in turns)
        assert all(ask for ask, _ in turns) or len(turns) == 1


def test_all_kinds_of_documents_occur() -> None:
    makers = [maker for _, maker in talk._MAKERS]
    assert sum(share for share, _ in talk._MAKERS) == pytest.approx(1)
    assert len(makers) == 8
    texts = [turns[0][1] for turns in talks() if not turns[0][0]]
    pairs = sum("Q: " in text for text in texts)
    kinds = {"plain": len(texts) - pairs, "pairs": pairs, "chat": len(talks()) - len(texts)}
    assert min(kinds.values()) > 100
    assert max(len(turns) for turns in talks()) >= 10


def test_requests_for_sketches_name_things_of_the_sketch() -> None:
    rng = random.Random(1)
    for seed in range(300):
        item = sketch(seed)
        ask = request(item, rng)
        text = item.text().lower()
        for value in re.findall(r"about (?:an? )?(.*?)(?: named .*)?(?: and .*)?[.?]$", ask):
            first = re.split(r" (?:at|in|on|by|near|behind) ", value)[0]
            assert first.lower() in text, (ask, text)
        for mood in sketch_words.MOODS:
            if f" {mood} " in ask:
                assert item.mood == mood
        for word in re.findall(r"words (.*), (.*) and (.*)[.?]", ask):
            assert all(part.lower() in text for part in word), (ask, text)


def test_requests_for_tales_name_the_hero_or_the_topic() -> None:
    rng = random.Random(2)
    kinds = Counter(
        (item.about[0] in ask, item.about[1] in ask) for item in map(tale, range(200)) for ask in [request(item, rng)]
    )
    assert len(kinds) == 4


def test_a_request_for_another_mood_is_obeyed() -> None:
    marks = {"happy": "happy", "sad": "sad", "funny": "laughed|funn"}
    moods: Counter[str] = Counter()
    for turns in talks():
        for ask, answer in turns:
            for mood, mark in marks.items():
                if ask in mood_requests(mood):
                    assert re.search(mark, answer), (ask, answer)
                    moods[mood] += 1
    assert min(moods[mood] for mood in marks) > 5


def test_no_question_is_asked_twice_about_one_story() -> None:
    for turns in talks():
        if len(turns) > 1 and turns[0][1].count(" ") > 40 and not any(ask in sketch_words.AGAIN for ask, _ in turns):
            retold = [ask for mood in sketch_words.MOODS for ask in mood_requests(mood)]
            stories = sum(len(answer.split()) > 45 for _, answer in turns)
            questions = [ask for ask, answer in turns if answer and ask not in retold]
            assert stories > 1 or len(questions) == len(set(questions)), turns


def test_some_answers_say_that_the_story_does_not_tell() -> None:
    answers = [answer for turns in talks() for ask, answer in turns if ask.endswith("?") and len(answer.split()) < 15]
    unknown = sum(answer in (*sketch_words.UNKNOWN, *sketch_words.UNKNOWN_SCENE) for answer in answers)
    assert 0.05 < unknown / len(answers) < 0.3
