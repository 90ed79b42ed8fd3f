"""Short stories and scenes: every way to tell one holds the same cast, and every answer is true."""

from __future__ import annotations

import re
from functools import cache

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


def test_a_sketch_and_a_scene_are_functions_of_their_seeds() -> None:
    assert [sketch(seed) for seed in (5, 2)] == [all_sketches()[5], all_sketches()[2]]
    assert [scene(seed) for seed in (5, 2)] == [all_scenes()[5], all_scenes()[2]]
    assert len({one.text() for one in all_sketches()}) > 395


def test_sketches_are_tidy() -> None:
    for one in all_sketches():
        texts = [one.text(mood) for mood in sketch_words.MOODS] + [*one.shorter.values(), one.then]
        assert not [fault for text in texts for fault in untidy(text)], one


def test_every_version_keeps_the_cast_and_the_thing() -> None:
    for one in all_sketches():
        hero, friend = one.names
        for mood in sketch_words.MOODS:
            for text in (one.text(mood), one.shorter[mood]):
                assert hero in text
                assert friend in text
                assert one.subjects["t"] in text
            assert len(one.shorter[mood].split()) < 0.7 * len(one.text(mood).split())
        assert hero in one.then
        assert hero in one.title


def test_the_mood_is_in_the_words() -> None:
    marks = {"happy": r"\bhappy\b", "sad": r"\bsad\b", "funny": r"\blaughed\b|\bfunn"}
    for one in all_sketches():
        for mood, mark in marks.items():
            assert re.search(mark, one.outcomes[mood]), (mood, one.outcomes[mood])
            others = [other for other in marks if other != mood]
            assert not any(re.search(marks[other], one.outcomes[mood]) for other in others), (mood, one.outcomes[mood])


def test_names_are_consistent_in_children_s_sketches() -> None:
    for one in all_sketches():
        assert name_faults(one.text()) == [], one.text()
        assert set(one.names) <= set(names_in(one.text()))


def test_values_of_sketches_were_told() -> None:
    for one in all_sketches():
        for mood in sketch_words.MOODS:
            text = one.text(mood).lower()
            for question in one.questions:
                if question.value not in ("boy", "girl"):  # a child's name tells that
                    assert question.value.lower() in text, (question, text)
            assert one.endings[mood][0].value.lower() in text, (one.endings[mood], text)


def test_what_a_sketch_does_not_say() -> None:
    for one in all_sketches():
        asked = {question.question for question in one.questions}
        assert not asked & set(one.unknown)
        for ask in one.unknown:
            if absent := re.match(r"What color was the (.*)\?", ask):
                thing = absent[1]
                assert thing not in one.text() or not re.search(rf"({'|'.join(words.COLORS)}) {thing}", one.text())
            if ask in ("What day was it?", "Which day was it?", "On what day did it happen?"):
                assert not any(day in one.text() for day in words.DAYS)


def test_lists() -> None:
    assert listed(["a map"]) == "a map"
    assert listed(["a map", "a net"]) == "a map and a net"
    assert listed(["a map", "a net", "a pot"]) == "a map, a net and a pot"
    packed = [one for one in all_sketches() if one.packed]
    assert len(packed) > 100
    assert all(item in one.text() for one in packed for item in one.packed)


def _state(text: str, kind: str) -> dict[str, str]:
    """Read who has, or where is, what from the words of a scene: the reference for its questions."""
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
    for one in all_scenes():
        for kind, form in (("has", _HAS), ("is", r"(?:Where|In what place) is (\w+)\?")):
            state = _state(one.text, kind)
            for question in one.questions:
                if match := re.fullmatch(form, question.question):
                    assert question.value == state[match[1]], (question, one.text)
                    checked += 1
    assert checked > 100


def test_unknown_questions_of_scenes_ask_for_what_is_not_there() -> None:
    for one in all_scenes():
        state = _state(one.text, "has")
        for ask in one.unknown:
            if match := re.fullmatch(_HAS, ask):
                assert match[1] not in state, (ask, one.text)
                assert not re.search(rf"{match[1]} has ", one.text), (ask, one.text)
