"""Test the exam of a model: one that knows the truth passes everything, and each kind of fault is reported."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import pytest

from edgedec.quantize.demo_pair import exam as checks
from edgedec.quantize.demo_pair import sketch_words as sketches
from edgedec.quantize.demo_pair.facts import fact
from edgedec.quantize.demo_pair.sketch import Sketch, listed, sketch
from edgedec.quantize.demo_pair.talk import Turn, mood_requests
from edgedec.quantize.demo_pair.world import Question, tale, tidy

FIRST = checks._FIRST


def by_text(first: int, count: int) -> dict[str, Sketch]:
    return {item.text(): item for item in map(sketch, range(first, first + count))}


def obedient(turns: Sequence[Turn], ask: str) -> str:
    """Follow every instruction of ``instructions`` in the way of the generator."""
    by_story = by_text(FIRST + 30_000, 120)
    if not turns:
        for item in by_story.values():
            wishes = (
                tidy(f"about a {item.subjects['h.kind']} and a {item.subjects['t']}."),
                f"{item.names[0]} and {item.subjects['t.a']}.",
                f"{item.names[0]} {item.subjects['p.at']}.",
            )
            if ask.endswith(wishes) and (item.mood in ask or not any(mood in ask for mood in sketches.MOODS)):
                return item.text()
        raise AssertionError(ask)
    item = by_story[turns[0][1]]
    for mood in sketches.MOODS:
        if ask in mood_requests(mood):
            return item.text(mood)
    if ask in sketches.SHORTER:
        return item.shorter[item.mood]
    if ask in sketches.CONTINUE:
        return item.then
    if ask in sketches.LISTING:
        return "\n".join(f"{at}. {thing}" for at, thing in enumerate(item.packed, 1))
    return item.title if ask in sketches.TITLE else f"{listed(item.named)}."


@pytest.mark.nightly
@pytest.mark.thorough
def test_an_obedient_model_follows_all_instructions() -> None:
    result = checks.instructions(obedient, 66)
    assert result["followed"] == 1.0, result["wrong"]
    assert len([key for key in result if key.startswith("followed_")]) == 9


@pytest.mark.nightly(sample=1)
@pytest.mark.thorough
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
def test_a_disobedient_model_is_reported(kind: str, fault: object) -> None:
    result = checks.instructions(lambda turns, ask: fault(obedient(turns, ask)), 33)  # type: ignore[operator]
    assert result[f"followed_{kind}"] < 0.4, result


def truthful(turns: Sequence[Turn], ask: str) -> str:
    """Answer questions about held-out stories and the world in the way of the generator."""
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


@pytest.mark.thorough
def test_a_truthful_model_is_right() -> None:
    result = checks.questions(truthful, 24)
    assert (result["asked"], result["right"]) == (24, 1.0), result["wrong"]
    assert checks.facts(truthful, 40)["right"] == 1.0


@pytest.mark.parametrize("answer", ["", "I do not know.", "It was Victor.", "The story is about a story."])
def test_a_model_that_always_answers_the_same_is_wrong(answer: str) -> None:
    assert checks.questions(lambda turns, ask: answer, 60)["right"] < 0.3
    assert checks.facts(lambda turns, ask: answer, 60)["right"] < 0.1


def test_the_model_s_own_stories_are_read_from_their_words() -> None:
    story = sketch(7)

    def ask(turns: Sequence[Turn], text: str) -> str:
        if not turns:
            return story.text()
        by_question = {"Who is the story about?": "about", "Where did they go?": "place"}
        kinds = {question.question: question.answer for question in story.questions}
        return kinds.get(text) or {
            "about": f"It is about {story.names[0]}.",
            "place": f"They went to {story.subjects['p']}.",
        }.get(by_question.get(text, ""), f"It was {story.subjects['t.a'].split()[1]}.")

    result = checks.own_questions(ask, 2)
    assert result["asked"] == 6
    assert result["right"] == 1.0, result["wrong"]
    assert checks.own_questions(lambda turns, text: "Blue." if turns else story.text(), 2)["right"] < 0.4


def test_a_repeated_story_is_reported() -> None:
    story = sketch(3).text()
    report = checks.stories(lambda turns, ask: story, lambda text: f"{text} {story}", 6)
    assert report["different"] <= 4
    assert report["looping"] == 0
    looping = checks.stories(lambda turns, ask: "Mia ran. " * 40, lambda text: text + " He ran to her." * 40, 6)
    assert looping["looping"] == 6
    assert looping["different"] <= 4


@pytest.mark.thorough
def test_consistent_stories_are_counted() -> None:
    at = iter(range(FIRST, FIRST + 100))
    result = checks.stories(lambda turns, ask: tale(next(at)).text, lambda text: tale(next(at)).text, 40)
    assert result["names_consistent"] >= 0.95, result["faulty"]
    report = checks.stories(lambda turns, ask: "Mia was a girl. Ben ran.", lambda text: "Mia was a girl. Ben ran.", 6)
    assert report["names_consistent"] == 0


def test_a_pet_s_name_belongs_to_the_names_of_a_story() -> None:
    one = next(item for item in map(sketch, range(60)) if len(item.named) == 3)
    for names, right in ((one.named, True), (one.names, False)):
        answer = listed(names)

        def ask(turns: Sequence[Turn], wish: str, answer: str = answer) -> str:
            return answer

        _, _, good = checks._instruction("people", one, ask, random.Random(1))
        assert good == right


def test_requests_of_the_exam_have_the_article_of_the_training_text() -> None:
    one = next(item for item in map(sketch, range(300)) if item.subjects["h.kind"] in ("owl", "elephant"))
    wishes = {checks._instruction("story", one, lambda turns, ask: "", random.Random(seed))[0] for seed in range(9)}
    assert any(f" an {one.subjects['h.kind']} " in wish for wish in wishes), wishes
    assert not any(re.search(r"\ba [aeio]", wish) for wish in wishes), wishes
