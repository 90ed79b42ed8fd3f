"""The exam of a model: one that knows the truth passes all, and each kind of fault is seen."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from edgedec.quantize.demo_pair import exam as checks
from edgedec.quantize.demo_pair import sketch_words as sketches
from edgedec.quantize.demo_pair.sketch import Sketch, listed, sketch
from edgedec.quantize.demo_pair.talk import Turn, mood_requests
from edgedec.quantize.demo_pair.world import Question, fact, tale

FIRST = checks._FIRST


def by_text(first: int, count: int) -> dict[str, Sketch]:
    return {one.text(): one for one in map(sketch, range(first, first + count))}


def obedient(turns: Sequence[Turn], ask: str) -> str:
    """Follow every instruction of ``instructions``, as the generator would."""
    known = by_text(FIRST + 30_000, 120)
    if not turns:
        for one in known.values():
            wishes = (
                f"a {one.subjects['h.kind']} and a {one.subjects['t']}.",
                f"{one.names[0]} and {one.subjects['t.a']}.",
                f"{one.names[0]} {one.subjects['p.at']}.",
            )
            if ask.endswith(wishes) and (one.mood in ask or not any(mood in ask for mood in sketches.MOODS)):
                return one.text()
        raise AssertionError(ask)
    one = known[turns[0][1]]
    for mood in sketches.MOODS:
        if ask in mood_requests(mood):
            return one.text(mood)
    if ask in sketches.SHORTER:
        return one.shorter[one.mood]
    if ask in sketches.CONTINUE:
        return one.then
    if ask in sketches.LISTING:
        return "\n".join(f"{at}. {item}" for at, item in enumerate(one.packed, 1))
    return one.title if ask in sketches.TITLE else f"{listed(one.names)}."


def test_an_obedient_model_follows_all_instructions() -> None:
    result = checks.instructions(obedient, 66)
    assert result["followed"] == 1.0, result["wrong"]
    assert len([key for key in result if key.startswith("followed_")]) == 9


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("story", lambda text: text.replace("went to", "stayed near").replace("a ", "the ")[:40]),
        ("happy", lambda text: re.sub(r"happy|glad", "bored", text)),
        ("sad", lambda text: re.sub(r"sad|cried", "fine", text)),
        ("funny", lambda text: re.sub(r"laughed|funniest|funny|laugh", "slept", text)),
        ("shorter", lambda text: text + " And so on." * 20),
        ("continue", lambda text: "It rained."),
        ("list", lambda text: text.replace("\n", ", ")),
        ("title", lambda text: "A Story"),
        ("people", lambda text: text.replace(" and ", " and Bob, and ").replace("Bob", "Victor")),
    ],
)
def test_a_disobedient_model_is_seen(kind: str, fault: object) -> None:
    result = checks.instructions(lambda turns, ask: fault(obedient(turns, ask)), 33)  # type: ignore[operator]
    assert result[f"followed_{kind}"] < 0.4, result


def truthful(turns: Sequence[Turn], ask: str) -> str:
    """Answer questions about held-out stories and the world as the generator does."""
    text = turns[0][1] if turns else ""
    for at in range(12):
        short, long = sketch(FIRST + 10_000 + at), tale(FIRST + 10_000 + at)
        pool: list[Question] = []
        if text == short.text():
            pool = [*short.questions, *short.endings[short.mood]]
            pool += [Question(question=q, answer=sketches.UNKNOWN[0], wrong=()) for q in short.unknown]
        elif text == long.text:
            pool = [
                *long.questions,
                *(Question(question=q, answer=sketches.UNKNOWN[1], wrong=()) for q in long.unknown),
            ]
        for question in pool:
            if question.question == ask:
                return question.answer
    for at in range(40):
        if fact(FIRST + 40_000 + at).question == ask:
            return fact(FIRST + 40_000 + at).answer
    raise AssertionError(ask)


def test_a_truthful_model_is_right() -> None:
    result = checks.questions(truthful, 24)
    assert (result["asked"], result["right"]) == (24, 1.0), result["wrong"]
    assert checks.facts(truthful, 40)["right"] == 1.0


@pytest.mark.parametrize("answer", ["", "I do not know.", "It was Victor.", "The story is about a story."])
def test_a_model_that_always_says_the_same_is_wrong(answer: str) -> None:
    assert checks.questions(lambda turns, ask: answer, 60)["right"] < 0.3
    assert checks.facts(lambda turns, ask: answer, 60)["right"] < 0.1


def test_own_stories_are_read_from_their_words() -> None:
    told = sketch(7)

    def ask(turns: Sequence[Turn], text: str) -> str:
        if not turns:
            return told.text()
        by_question = {"Who is the story about?": "about", "Where did they go?": "place"}
        kinds = {question.question: question.answer for question in told.questions}
        return kinds.get(text) or {
            "about": f"It is about {told.names[0]}.",
            "place": f"They went to {told.subjects['p']}.",
        }.get(by_question.get(text, ""), f"It was {told.subjects['t.a'].split()[1]}.")

    result = checks.own_questions(ask, 2)
    assert result["asked"] == 6
    assert result["right"] == 1.0, result["wrong"]
    assert checks.own_questions(lambda turns, text: "Blue." if turns else told.text(), 2)["right"] < 0.4


def test_the_same_story_for_everybody_is_seen() -> None:
    one = sketch(3).text()
    good = checks.stories(lambda turns, ask: one, lambda text: f"{text} {one}", 6)
    assert good["different"] <= 4
    assert good["looping"] == 0
    looping = checks.stories(lambda turns, ask: "Mia ran. " * 40, lambda text: text + " He ran to her." * 40, 6)
    assert looping["looping"] == 6
    assert looping["different"] <= 4


def test_consistent_stories_count() -> None:
    at = iter(range(FIRST, FIRST + 100))
    result = checks.stories(lambda turns, ask: tale(next(at)).text, lambda text: tale(next(at)).text, 40)
    assert result["names_consistent"] >= 0.95, result["faulty"]
    broken = checks.stories(lambda turns, ask: "Mia was a girl. Ben ran.", lambda text: "Mia was a girl. Ben ran.", 6)
    assert broken["names_consistent"] == 0
