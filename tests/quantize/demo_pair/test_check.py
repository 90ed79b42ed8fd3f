"""Test that the checks of generated text report planted faults, and none in what the generator itself writes."""

from __future__ import annotations

import random
import re

import pytest

from edgedec.quantize.demo_pair import words as words
from edgedec.quantize.demo_pair.check import is_right, name_faults, names_in, says_unknown
from edgedec.quantize.demo_pair.facts import fact
from edgedec.quantize.demo_pair.sketch import scene, sketch
from edgedec.quantize.demo_pair.world import Question, tale


def stories() -> list[str]:
    return [sketch(seed).text() if seed % 2 else tale(seed).text for seed in range(400)]


@pytest.mark.thorough
def test_the_generator_s_own_stories_pass() -> None:
    faulty = [text for text in stories() if name_faults(text)]
    assert len(faulty) <= 4, faulty  # sentences about the hand or mother of another character


@pytest.mark.thorough
def test_a_name_that_changes_is_reported() -> None:
    rng = random.Random(3)
    reported = total = 0
    for text in stories():
        cast = names_in(text)
        mentions = [*re.finditer(rf"\b{cast[0]}\b", text)][1:]
        if mentions:
            at = rng.choice(mentions)
            replacement = rng.choice([name for name in (*words.GIRLS, *words.BOYS) if name not in cast])
            total += 1
            reported += bool(name_faults(text[: at.start()] + replacement + text[at.end() :]))
    assert total > 300
    assert reported > 0.95 * total


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Everyone knew Felix, the friendly bunny. Then Bella put on a hat.", "Bella comes from nowhere"),
        ("Once upon a time, there was a shy girl named Mia. He went home.", "nobody here is 'He'"),
        ("Mia was a shy girl. She went to the lake with a boy named Tom. Mia hurt himself.", "Mia is not 'himself'"),
        ("It was raining. The sun came out.", "nobody is named"),
    ],
)
def test_planted_faults_are_reported(text: str, fault: str) -> None:
    assert any(fault in fault_line for fault_line in name_faults(text)), name_faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "Mia was a shy girl. She went to the lake with her friend Tom. Tom gave his ball to her.",
        "Ben was a brave boy. One day, Ben met Old Mr. Stone. He had a bag.",
        'Pip was a merry bunny. "Does it have a name?" asked her cousin Dylan. "Button," said Pip.',
    ],
)
def test_consistent_stories_pass(text: str) -> None:
    assert name_faults(text) == []


@pytest.mark.thorough
def test_right_answers_are_right_and_wrong_answers_are_wrong() -> None:
    for seed in range(300):
        short = sketch(seed)
        for question in (
            *tale(seed).questions,
            *short.questions,
            *short.endings["sad"],
            *scene(seed).questions,
            fact(seed),
        ):
            assert is_right(question.answer, question), question
            assert not is_right("I do not know. The story does not say.", question)
            assert not any(is_right(wrong_answer, question) for wrong_answer in question.wrong), question


def test_an_answer_is_judged_by_its_value() -> None:
    color = Question(question="What color was the kite?", answer="It was red.", wrong=(), value="red")
    assert is_right("The kite was red.", color)
    assert not is_right("It was blue.", color)
    assert not is_right("It was dark reddish.", color)
    thing = Question(question="What did Mia have?", answer="Mia had a red kite.", wrong=(), value="a red kite")
    assert is_right("The red kite.", thing)
    assert not is_right("A kite, red as a rose.", thing)


def test_not_knowing_is_right_if_the_story_does_not_say() -> None:
    untold = Question(question="How old was Mia?", answer="I do not know. The story does not say.", wrong=())
    assert is_right("The story does not say.", untold)
    assert not is_right("Mia was six years old.", untold)
    assert says_unknown("I do not know.")
    assert not says_unknown("It was Tuesday.")
