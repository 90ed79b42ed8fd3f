"""Test conversations: requests name what the story holds, follow-ups are obeyed, and no question is asked twice."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache

import pytest

from edgedec.quantize.demo_pair import sketch_words, talk
from edgedec.quantize.demo_pair.check import names_in
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


@pytest.mark.thorough
def test_all_kinds_of_documents_occur() -> None:
    makers = [maker for _, maker in talk._MAKERS]
    assert sum(share for share, _ in talk._MAKERS) == pytest.approx(1)
    assert len(makers) == 8
    texts = [turns[0][1] for turns in talks() if not turns[0][0]]
    pairs = sum("Q: " in text for text in texts)
    kinds = {"plain": len(texts) - pairs, "pairs": pairs, "chat": len(talks()) - len(texts)}
    assert min(kinds.values()) > 100
    assert max(len(turns) for turns in talks()) >= 10


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_requests_for_tales_name_the_hero_or_the_topic() -> None:
    rng = random.Random(2)
    kinds = Counter(
        (item.about[0] in ask, item.about[1] in ask) for item in map(tale, range(200)) for ask in [request(item, rng)]
    )
    assert len(kinds) == 4


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_no_question_is_asked_twice_about_one_story() -> None:
    for turns in talks():
        if len(turns) > 1 and turns[0][1].count(" ") > 40 and not any(ask in sketch_words.AGAIN for ask, _ in turns):
            retold = [ask for mood in sketch_words.MOODS for ask in mood_requests(mood)]
            stories = sum(len(answer.split()) > 45 for _, answer in turns)
            questions = [ask for ask, answer in turns if answer and ask not in retold]
            assert stories > 1 or len(questions) == len(set(questions)), turns


@pytest.mark.thorough
def test_some_answers_say_that_the_story_does_not_tell() -> None:
    answers = [answer for turns in talks() for ask, answer in turns if ask.endswith("?") and len(answer.split()) < 15]
    unknown = sum(answer in (*sketch_words.UNKNOWN, *sketch_words.UNKNOWN_SCENE) for answer in answers)
    assert 0.05 < unknown / len(answers) < 0.3


@pytest.mark.thorough
def test_the_list_of_names_is_complete() -> None:
    checked = 0
    for seed in range(300):
        turns = talk._about_sketch(random.Random(seed), seed)
        for ask, answer in turns:
            if ask in sketch_words.PEOPLE:
                assert names_in(answer) == names_in(turns[0][1]), turns
                checked += 1
    assert checked > 15


@pytest.mark.thorough
def test_questions_after_a_continuation_are_those_that_stay_true() -> None:
    checked = 0
    for seed in range(300):
        item, continued = sketch(seed), False
        lasting = {one.question for one in (*item.lasting, *item.later)} | {*item.lasting_unknown}
        for ask, answer in talk._sketch_turns(random.Random(seed), item)[1:]:
            if any(ask in mood_requests(mood) for mood in sketch_words.MOODS):
                continued = False
            elif continued and ask not in (*sketch_words.TITLE, *sketch_words.LISTING):
                assert ask in lasting, (ask, item.text(), item.then)
                checked += 1
            continued = continued or answer == item.then
    assert checked > 20


@cache
def long_talks() -> tuple[tuple[Turn, ...], ...]:
    return tuple(tuple(talk._long_talk(random.Random(seed), seed)) for seed in range(60))


@pytest.mark.thorough
def test_long_talks_fill_a_context_of_4096_tokens() -> None:
    letters = [sum(len(ask) + len(answer) for ask, answer in turns) for turns in long_talks()]
    assert 10_000 < max(letters) < 14_500
    assert sum(len(turns) >= 10 for turns in long_talks()) > 30


@pytest.mark.thorough
def test_long_talks_ask_about_earlier_stories() -> None:
    checked = 0
    for turns in long_talks():
        stories = [answer for ask, answer in turns if len(answer.split()) > 40 and not _is_follow_up(ask)]
        for at, (ask, answer) in enumerate(turns):
            if ask in sketch_words.FIRST_STORY[0]:
                assert answer.rstrip(".").split()[-1] in stories[0], (ask, answer, stories[0])
                told = [text for _, text in turns[:at] if text in stories]
                assert len(told) > 1
                checked += 1
    assert checked > 5


def _is_follow_up(ask: str) -> bool:
    return ask in sketch_words.CONTINUE or any(ask in mood_requests(mood) for mood in sketch_words.MOODS)


@pytest.mark.thorough
def test_remarks_follow_stories_and_goodbyes_come_last() -> None:
    remarks = {ask for asks, _ in sketch_words.REMARKS for ask in asks}
    goodbyes = {ask for asks, _ in sketch_words.GOODBYES for ask in asks}
    for turns in long_talks():
        stories = 0
        for at, (ask, answer) in enumerate(turns):
            assert stories or ask not in {*remarks, *sketch_words.AGAIN}, turns[: at + 1]
            assert ask not in goodbyes or at == len(turns) - 1
            stories += len(answer.split()) > 40
    asked = [(ask, answer) for turns in long_talks() for ask, answer in turns if ask == "Did you make that up?"]
    assert all(answer.startswith("Yes") for _, answer in asked)
