"""Test short stories and scenes: every version has the same cast, and every answer is true."""

from __future__ import annotations

import re
from functools import cache

import pytest

from edgedec.quantize.demo_pair import sketch_words, words
from edgedec.quantize.demo_pair.check import name_faults, names_in
from edgedec.quantize.demo_pair.sketch import Scene, Sketch, listed, scene, sketch
from tests.quantize.demo_pair.test_world import untidy

_HAS = r"(?:What does|Tell me what) (\w+) ha(?:ve|s)[.?]"


@cache
def all_sketches() -> tuple[Sketch, ...]:
    return tuple(sketch(seed) for seed in range(400))


@cache
def all_scenes() -> tuple[Scene, ...]:
    return tuple(scene(seed) for seed in range(400))


@pytest.mark.thorough
def test_a_sketch_and_a_scene_are_functions_of_their_seeds() -> None:
    assert [sketch(seed) for seed in (5, 2)] == [all_sketches()[5], all_sketches()[2]]
    assert [scene(seed) for seed in (5, 2)] == [all_scenes()[5], all_scenes()[2]]
    assert len({item.text() for item in all_sketches()}) > 395


@pytest.mark.thorough
def test_sketches_are_tidy() -> None:
    for item in all_sketches():
        texts = [item.text(mood) for mood in sketch_words.MOODS] + [*item.shorter.values(), item.then]
        assert not [fault for text in texts for fault in untidy(text)], item


@pytest.mark.thorough
def test_every_version_keeps_the_cast_and_the_thing() -> None:
    for item in all_sketches():
        hero, friend = item.names
        for mood in sketch_words.MOODS:
            for text in (item.text(mood), item.shorter[mood]):
                assert hero in text
                assert friend in text
                assert item.subjects["t"] in text
            assert len(item.shorter[mood].split()) < 0.7 * len(item.text(mood).split())
        assert hero in item.then
        assert hero in item.title


def test_the_words_show_the_mood() -> None:
    marks = {"happy": r"\bhappy\b", "sad": r"\bsad\b", "funny": r"\blaughed\b|\bfunn"}
    for item in all_sketches():
        for mood, mark in marks.items():
            assert re.search(mark, item.outcomes[mood]), (mood, item.outcomes[mood])
            others = [other for other in marks if other != mood]
            assert not any(re.search(marks[other], item.outcomes[mood]) for other in others), (
                mood,
                item.outcomes[mood],
            )


def test_names_are_consistent_in_children_s_sketches() -> None:
    for item in all_sketches():
        assert name_faults(item.text()) == [], item.text()
        assert set(item.names) <= set(names_in(item.text()))


def test_values_of_sketches_were_told() -> None:
    for item in all_sketches():
        for mood in sketch_words.MOODS:
            text = item.text(mood).lower()
            for question in item.questions:
                if question.value not in ("boy", "girl"):  # the name of a child tells that
                    assert question.value.lower() in text, (question, text)
            assert item.endings[mood][0].value.lower() in text, (item.endings[mood], text)


def test_questions_about_what_a_sketch_omits_have_no_answer() -> None:
    for item in all_sketches():
        questions = {question.question for question in item.questions}
        assert not questions & set(item.unknown)
        for ask in item.unknown:
            if absent := re.match(r"What color was the (.*)\?", ask):
                thing = absent[1]
                assert thing not in item.text() or not re.search(rf"({'|'.join(words.COLORS)}) {thing}", item.text())
            if ask in ("What day was it?", "Which day was it?", "On what day did it happen?"):
                assert not any(day in item.text() for day in words.DAYS)


def test_lists_name_every_thing() -> None:
    assert listed(["a map"]) == "a map"
    assert listed(["a map", "a net"]) == "a map and a net"
    assert listed(["a map", "a net", "a pot"]) == "a map, a net and a pot"
    packed = [short for short in all_sketches() if short.packed]
    assert len(packed) > 100
    assert all(item in short.text() for short in packed for item in short.packed)


def _state(text: str, kind: str) -> dict[str, str]:
    """Read who has what, or where it is, from the words of a scene: the reference for its questions."""
    state: dict[str, str] = {}
    for line in re.split(r"(?<=\.) ", text):
        gift = re.fullmatch(r"(\w+) gives the (.*) to (\w+)\.", line)
        place = re.fullmatch(r"(?:Now )?(\w+) (?:is|sits|plays) ((?:at|in|on|by|near|behind|under) .*)\.", line)
        thing = re.fullmatch(r"(\w+) (?:has|owns) (an? .*)\.", line)
        if gift and kind == "has":
            giver, noun, taker = gift.groups()
            del state[giver]
            state[taker] += f" and an {noun}" if noun[0] in "aeiou" else f" and a {noun}"
        elif place and kind == "is":
            state[place[1]] = place[2]
        elif thing and kind == "has" and not re.search(r" on\.$| pet ", line):
            state[thing[1]] = thing[2]
    return state


def test_answers_of_scenes_follow_from_their_words() -> None:
    checked = 0
    for scene_item in all_scenes():
        for kind, form in (("has", _HAS), ("is", r"(?:Where|In what place) is (\w+)\?")):
            state = _state(scene_item.text, kind)
            for question in scene_item.questions:
                if match := re.fullmatch(form, question.question):
                    assert question.value == state[match[1]], (question, scene_item.text)
                    checked += 1
    assert checked > 100


def test_unknown_questions_of_scenes_ask_for_absent_things() -> None:
    for scene_item in all_scenes():
        state = _state(scene_item.text, "has")
        for ask in scene_item.unknown:
            if match := re.fullmatch(_HAS, ask):
                assert match[1] not in state, (ask, scene_item.text)
                assert not re.search(rf"{match[1]} has ", scene_item.text), (ask, scene_item.text)


def test_no_sun_shines_in_the_evening() -> None:
    dark = [item for item in all_sketches() if re.search(r"\b(?:evening|night)\b", item.body)]
    assert len(dark) > 25
    assert not [item for item in dark for text in item.outcomes.values() if re.search(r"\bsun\b", text)]


def test_the_animals_of_an_event_are_nobody_else() -> None:
    for item in all_sketches():
        kinds = {item.subjects["h.kind"], item.subjects["f.kind"], *re.findall(r" had an? (\w+) named", item.body)}
        assert len(set(item.named)) == len(item.named), item.body
        for outcome in item.outcomes.values():
            assert not kinds & set(re.findall(r"[a-z]+", outcome.lower())), (kinds, outcome)


def test_there_is_one_thing_of_each_kind() -> None:
    for item in all_sketches():
        assert f"a {item.subjects['t']}" not in item.packed
        assert "bag" not in item.subjects["t"]  # "What was in the bag?" is about the things that they packed
        assert not [ask for ask in item.unknown if "with them" in ask]  # they took the thing of the story


def test_questions_after_a_continuation_have_one_answer() -> None:
    places = r"Where (?:did|were) (?:they|\w+ go)|To what place"
    told_anew = rf"{places}|What did \w+ (?:bring|have with|take)|.*\bday\b|.*morning"
    for item in all_sketches():
        asks = [*(one.question for one in item.lasting), *item.lasting_unknown]
        assert not [ask for ask in asks if re.match(told_anew, ask)], asks
        assert all(one.value.lower() in item.then.lower() for one in item.later), (item.later, item.then)
        assert item.later[0].value != item.subjects["p"]
        assert not {one.question for one in item.later} & {one.question for one in item.questions}


def test_yes_and_no_suit_the_mood() -> None:
    asked = [
        (mood, one.answer)
        for item in all_sketches()
        for mood, pair in item.endings.items()
        for one in pair
        if one.question.startswith("Was ")
    ]
    assert len(asked) > 100
    assert all(answer.startswith("No, " if mood == "sad" else "Yes, ") for mood, answer in asked)


def test_what_a_person_of_a_scene_has_or_likes_is_told_in_one_way() -> None:
    for scene_item in all_scenes():
        text, asks = scene_item.text, " ".join(scene_item.unknown)
        has = re.search(r" (?:has|owns) an? (?!pet)[^.]*(?<! on)\.", text)
        assert not (has and re.search(r" pet | wears | on\.", text)), text
        wants, likes = (re.search(form, text) for form in (r" (?:wants|would like) ", r" (?:likes|loves) "))
        if wants and not likes:
            assert not re.search(r"What does \w+ (?:like|love)\?", asks), (text, asks)
        if likes and not wants:
            assert not re.search(r"What would \w+ like\?|(?:What does|Tell me what) \w+ wants?", asks), (text, asks)


def test_the_weather_is_not_unknown_if_the_wind_blows() -> None:
    windy = [item for item in all_sketches() if re.search(r"\bwind\b", item.text("sad"))]
    assert len(windy) > 10
    assert not [item.unknown for item in windy if re.search(r"\bweather\b", " ".join(item.unknown))]
