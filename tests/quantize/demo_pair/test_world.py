"""The stories vary, are clean English, and every question about them or the world is true."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import pytest

from edgedec.errors import UsageError
from edgedec.quantize.demo_pair import words, world
from edgedec.quantize.demo_pair.world import Question, Tale, fact, repeated_share, tale

NUMBER = {name: i for i, name in enumerate(words.NUMBERS)}
NAMES = {*words.GIRLS, *words.BOYS, *words.ANIMAL_NAMES, *(name for name, _ in words.NEIGHBOURS)}
PLACES = [at for at, _ in (*words.PLACES, *words.SPOTS, *words.INDOOR_SPOTS)]
NAMED = re.compile(rf"\b(?:{'|'.join(map(re.escape, (*words.COLORS, *PLACES, *sorted(NAMES))))})\b", re.IGNORECASE)
AN = re.compile(r"\b[Aa]n (?![aeiouAEIOU]|hour\b)|\b[Aa] (?=[aeiouAEIOU])(?!one\b|once\b|use|uni)")
UNTIDY = re.compile(r"[\[\]{}<>|*#~@]|  | \n|\n | [.,!?]|[.,!?][.,]|\.\.|\. [a-z]|\.\" [a-z]|,\"? ?[.!?]| $")


@cache
def tales() -> tuple[Tale, ...]:
    return tuple(tale(seed) for seed in range(400))


@cache
def facts() -> tuple[Question, ...]:
    return tuple(fact(seed) for seed in range(4000))


def told(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def untidy(text: str) -> list[str]:
    """Return what is wrong with the look of the text. A sum in digits is written with spaces and ends without a mark."""
    text = re.sub(r"\d+ [+-] \d+ = (?:\?|\d+)", "A sum.", text)
    found = [match.group() for match in (*UNTIDY.finditer(text), *AN.finditer(text))]
    found += [line for line in text.split("\n") if line.count('"') % 2 or not (line[:1].isupper() or line[:1] == '"')]
    return found + ([] if text[-1:] in '.!?"' else [text[-20:]])


def named(answer: str) -> list[str]:
    """Colours, places and names in the answer, all of which its story must have told."""
    return NAMED.findall(answer)


def test_a_story_is_a_function_of_its_seed() -> None:
    assert [tale(seed) for seed in (3, 1, 2)] == [tales()[3], tales()[1], tales()[2]]
    assert [fact(seed) for seed in (3, 1, 2)] == [facts()[3], facts()[1], facts()[2]]
    assert len({one.text for one in tales()}) == len(tales())


def test_length_and_repetition_inside_a_story() -> None:
    shares = sorted(repeated_share(one.text) for one in tales())
    assert shares[len(shares) // 2] < 0.04
    assert shares[-1] <= 0.12
    assert all(90 <= len(one.text.split()) <= 220 for one in tales())


def test_repeated_share_counts_four_word_sequences() -> None:
    assert repeated_share("one two three four") == 0.0
    assert repeated_share("a b c d, a b c d!") == pytest.approx(1 / 5)
    assert repeated_share("short") == 0.0


def test_stories_share_few_long_phrases() -> None:
    grams: Counter[tuple[str, ...]] = Counter()
    for one in tales():
        row = told(one.text)
        grams.update({tuple(row[i : i + 8]) for i in range(len(row) - 7)})
    phrase, count = grams.most_common(1)[0]
    assert count <= 0.03 * len(tales()), f"{' '.join(phrase)!r} is in {count} of {len(tales())} stories"
    assert len({word for one in tales() for word in told(one.text)}) > 1100


def test_once_upon_a_time_opens_about_a_third() -> None:
    assert 0.25 < sum(one.text.startswith("Once upon a time") for one in tales()) / len(tales()) < 0.42


def test_an_opening_tells_which_plot_may_follow() -> None:
    """Else a model that decodes greedily tells one plot after every opening."""
    suited = {name: set(adjectives) for name, adjectives in words.SUITED.items()}
    assert set(suited) == {plot.name for plot in world._plots()}
    listed = [adjective for adjectives in suited.values() for adjective in adjectives]
    assert len(listed) == len(set(listed))
    race = [one for one in tales() if one.about[1] == "a race"]
    assert sum(any(f" {word}" in one.text[:160] for word in suited["a race"]) for one in race) > len(race) / 2


def test_what_is_unknown_is_not_told() -> None:
    for one in tales():
        for ask in one.unknown:
            if "day was it" in ask or "what day" in ask:
                assert not any(day in one.text for day in words.DAYS), (ask, one.text)
            if "favorite color" in ask:
                assert "favorite color" not in one.text
    assert sum(len(one.unknown) for one in tales()) > 3 * len(tales())


def test_every_plot_and_outcome_is_told() -> None:
    kinds = [plot.name for plot in world._plots()]
    assert len(kinds) == len(set(kinds)) >= 16
    assert sum(len(plot.outcomes) for plot in world._plots()) >= 25
    openings = Counter(tuple(one.about[1:]) for one in tales())
    assert len(openings) > 100


@pytest.mark.parametrize(
    "text", ["a apple fell.", "An dog ran.", "He  ran.", 'He said, "No.', "he ran.", "He [h] ran.", "So,."]
)
def test_the_check_of_the_look_sees_faults(text: str) -> None:
    assert untidy(text)


def test_stories_are_tidy() -> None:
    assert {one.text: untidy(one.text) for one in tales() if untidy(one.text)} == {}


def test_a_story_names_what_it_is_about() -> None:
    for one in tales():
        assert len(one.about) == 2
        assert re.search(rf"\b{one.about[0]}\b", one.text)
        assert not re.search(r"[\[\]{}<>|]", one.about[1])


def test_questions_about_stories() -> None:
    for one in tales():
        assert 3 <= len(one.questions) <= 6
        assert len({question.question for question in one.questions}) == len(one.questions)
        for question in one.questions:
            assert question.question.endswith("?")
            assert len({question.answer, *question.wrong}) == 4, question
            assert not [text for text in (question.question, question.answer, *question.wrong) if untidy(text)]
            missing = [value for value in named(question.answer) if value.lower() not in one.text.lower()]
            assert not missing, (question, one.text)


def test_answers_use_words_of_their_stories() -> None:
    """What an answer says beyond its sentence frame and its question, the story said."""
    frames = {word for plot in world._plots() for ask in plot.asks for form in ask.answers for word in told(form)}
    frames |= {word for _, forms, _, _ in words.ASKS for form in forms for word in told(form)}
    for one in tales():
        for question in one.questions:
            known = frames | set(told(one.text)) | set(told(question.question))
            answer = question.answer.replace("'s birthday", "")
            assert not [word for word in told(answer) if len(word) > 4 and word not in known], (question, one.text)


def test_some_wrong_answers_come_from_the_story() -> None:
    colors = [(one, q) for one in tales() for q in one.questions if q.question.startswith("Who")]
    inside = sum(
        any(word.rstrip(".") in one.text for a in q.wrong for word in a.split() if word.rstrip(".") in NAMES)
        for one, q in colors
    )
    assert inside > 0.2 * len(colors)


def test_facts_are_many_and_well_formed() -> None:
    assert len({one.question for one in facts()}) > 300
    for one in facts():
        assert len({one.answer, *one.wrong}) == 4, one
        assert not [text for text in (one.question, one.answer, *one.wrong) if untidy(text)], one


def _value(text: str) -> int:
    """The last number word of a text."""
    return [NUMBER[word] for word in told(text) if word in NUMBER][-1]


def test_sums_are_right() -> None:
    checked = 0
    for one in facts():
        asked = [NUMBER[word] for word in told(one.question) if word in NUMBER]
        if digits := re.search(r"(\d+) (\+|-|plus|minus) (\d+)", one.question):
            a, b = int(digits[1]), int(digits[3])
            right = a + b if digits[2] in ("+", "plus") else a - b
            checked += 1
            assert int(re.findall(r"\d+", one.answer)[-1]) == right, one
            assert right not in [int(re.findall(r"\d+", text)[-1]) for text in one.wrong], one
            continue
        if re.search(
            r"plus|^What do .* make|^How much is \w+ and|^Add|more\. How|in a bag| and \w+ has ", one.question
        ):
            right = sum(asked)
        elif m := re.search(r"minus|take away|^Take|away\.|on a table", one.question):
            right = abs(asked[0] - asked[1]) if m else 0
        elif "comes after" in one.question and len(asked) == 1:
            right = asked[0] + 1
        elif "comes before" in one.question and len(asked) == 1:
            right = asked[0] - 1
        elif "biggest" in one.question:
            right = max(asked)
        elif "smallest" in one.question:
            right = min(asked)
        else:
            continue
        checked += 1
        assert _value(re.sub(r" left|is left", "", one.answer)) == right, one
        assert right not in [_value(text) for text in one.wrong], one
    assert checked > 300


def test_days_and_months_follow_each_other() -> None:
    checked = 0
    for one in facts():
        for names in (words.DAYS, words.MONTHS, words.SEASONS):
            here = [name for name in names if re.search(rf"\b{name}\b", one.question)]
            if (
                len(here) == 1
                and re.search(r"comes|follows|before", one.question)
                and "first flowers" not in one.question
            ):
                step = -1 if "before" in one.question else 1
                right = names[(names.index(here[0]) + step) % len(names)]
                rest = one.answer.replace(here[0], "", 1)
                assert right.lower() in rest.lower(), one
                checked += 1
    assert checked > 50


def test_table_facts_offer_no_other_true_value() -> None:
    for name, (_, _, rows) in words.FACTS.items():
        assert len({key for key, _ in rows}) == len(rows), name
        assert len({value for _, value in rows}) >= 4, name
    for name, key in words.ALSO_TRUE:
        assert key in dict(words.FACTS[name][2]), (name, key)
    for one in facts():
        if one.question.startswith(("What is a robin", "What kind of thing is a bee")):
            assert not any("animal" in text for text in one.wrong)


def test_a_question_without_a_place_for_the_answer_is_named() -> None:
    with pytest.raises(UsageError, match=r"'Who.' in plot 'odd' has no \*"):
        world._read_plot("odd # any # dry # a hat\nQ: Who? # It was Tom. # [h] # who\n\n[h] came.")


@pytest.mark.parametrize(("template", "fault"), [("{a|b", "leaves a brace open"), ("a}", "closes a brace")])
def test_a_broken_template_is_named(template: str, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        world._parse(template)
