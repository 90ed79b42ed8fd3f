"""Test that the stories vary and are clean English, and that every question about them or the world is true."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache
from itertools import pairwise

import pytest

from edgedec.errors import UsageError
from edgedec.quantize.demo_pair import words, world
from edgedec.quantize.demo_pair.check import is_right
from edgedec.quantize.demo_pair.facts import fact
from edgedec.quantize.demo_pair.plots import Ask, _read_plot, plots
from edgedec.quantize.demo_pair.world import Question, Tale, draw_cast, repeated_share, tale

NUMBER = {name: i for i, name in enumerate(words.NUMBERS)}
NAMES = {*words.GIRLS, *words.BOYS, *words.ANIMAL_NAMES, *(name for name, _ in words.NEIGHBOURS)}
PLACES = [at for at, _ in (*words.PLACES, *words.SPOTS, *words.INDOOR_SPOTS)]
NAMED = re.compile(rf"\b(?:{'|'.join(map(re.escape, (*words.COLORS, *PLACES, *sorted(NAMES))))})\b", re.IGNORECASE)
AN = re.compile(r"\b[Aa]n (?![aeiouAEIOU]|hour\b)|\b[Aa] (?=[aeiouAEIOU])(?!one\b|once\b|use|uni)")
UNTIDY = re.compile(r"[\[\]{}<>|*#~@]|  | \n|\n | [.,!?]|[.,!?][.,]|\.\.|\. [a-z]|\.\" [a-z]|,\"? ?[.!?]| $")


@cache
def tales() -> tuple[Tale, ...]:
    return tuple(tale(seed) for seed in range(500))


@cache
def facts() -> tuple[Question, ...]:
    return tuple(fact(seed) for seed in range(4000))


def told(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def untidy(text: str) -> list[str]:
    """Return the faults in the look of the text. A sum in digits is written with spaces and ends without a mark."""
    text = re.sub(r"\d+ [+-] \d+ = (?:\?|\d+)", "A sum.", text)
    faults = [match.group() for match in (*UNTIDY.finditer(text), *AN.finditer(text))]
    faults += [line for line in text.split("\n") if line.count('"') % 2 or not (line[:1].isupper() or line[:1] == '"')]
    return faults + ([] if text[-1:] in '.!?"' else [text[-20:]])


def named(answer: str) -> list[str]:
    """Return the colours, places and names in the answer, all of which must be in its story."""
    return NAMED.findall(answer)


@pytest.mark.thorough
def test_a_story_is_a_function_of_its_seed() -> None:
    assert [tale(seed) for seed in (3, 1, 2)] == [tales()[3], tales()[1], tales()[2]]
    assert [fact(seed) for seed in (3, 1, 2)] == [facts()[3], facts()[1], facts()[2]]
    assert len({item.text for item in tales()}) == len(tales())


@pytest.mark.thorough
def test_length_and_repetition_inside_a_story() -> None:
    shares = sorted(repeated_share(item.text) for item in tales())
    assert shares[len(shares) // 2] < 0.04
    assert shares[-1] <= 0.12
    assert all(90 <= len(item.text.split()) <= 220 for item in tales())


def test_repeated_share_counts_four_word_sequences() -> None:
    assert repeated_share("one two three four") == 0.0
    assert repeated_share("a b c d, a b c d!") == pytest.approx(1 / 5)
    assert repeated_share("short") == 0.0


@pytest.mark.thorough
def test_stories_share_few_long_phrases() -> None:
    grams: Counter[tuple[str, ...]] = Counter()
    for item in tales():
        row = told(item.text)
        grams.update({tuple(row[i : i + 8]) for i in range(len(row) - 7)})
    phrase, count = grams.most_common(1)[0]
    assert count <= 0.03 * len(tales()), f"{' '.join(phrase)!r} is in {count} of {len(tales())} stories"
    assert len({word for item in tales() for word in told(item.text)}) > 1100


@pytest.mark.thorough
def test_once_upon_a_time_opens_about_a_third() -> None:
    assert 0.25 < sum(item.text.startswith("Once upon a time") for item in tales()) / len(tales()) < 0.42


@pytest.mark.thorough
def test_an_opening_tells_which_plot_may_follow() -> None:
    """Check this because a model that decodes greedily would otherwise tell one plot after every opening."""
    suited = {name: set(adjectives) for name, adjectives in words.SUITED.items()}
    assert set(suited) == {plot.name for plot in plots()}
    listed = [adjective for adjectives in suited.values() for adjective in adjectives]
    assert len(listed) == len(set(listed))
    race = [item for item in tales() if item.about[1] == "a race"]
    assert sum(any(f" {word}" in item.text[:160] for word in suited["a race"]) for item in race) > len(race) / 2


def test_unknown_answers_are_not_in_the_story() -> None:
    for item in tales():
        for ask in item.unknown:
            if "day was it" in ask or "what day" in ask:
                assert not any(day in item.text for day in words.DAYS), (ask, item.text)
            if "favorite color" in ask:
                assert "favorite color" not in item.text
    assert sum(len(item.unknown) for item in tales()) > 3 * len(tales())


def test_every_plot_and_outcome_is_told() -> None:
    kinds = [plot.name for plot in plots()]
    assert len(kinds) == len(set(kinds)) >= 16
    assert sum(len(plot.outcomes) for plot in plots()) >= 25
    openings = Counter(tuple(item.about[1:]) for item in tales())
    assert len(openings) > 100


@pytest.mark.parametrize(
    "text", ["a apple fell.", "An dog ran.", "He  ran.", 'He said, "No.', "he ran.", "He [h] ran.", "So,."]
)
def test_the_check_of_the_look_reports_faults(text: str) -> None:
    assert untidy(text)


def test_stories_are_tidy() -> None:
    assert {item.text: untidy(item.text) for item in tales() if untidy(item.text)} == {}


def test_a_story_names_its_subject() -> None:
    for item in tales():
        assert len(item.about) == 2
        assert re.search(rf"\b{item.about[0]}\b", item.text)
        assert not re.search(r"[\[\]{}<>|]", item.about[1])


def test_questions_about_stories_have_true_answers() -> None:
    for item in tales():
        assert 3 <= len(item.questions) <= 6
        assert len({question.question for question in item.questions}) == len(item.questions)
        for question in item.questions:
            assert question.question.endswith("?")
            assert len({question.answer, *question.wrong}) == 4, question
            assert not [text for text in (question.question, question.answer, *question.wrong) if untidy(text)]
            missing = [value for value in named(question.answer) if value.lower() not in item.text.lower()]
            assert not missing, (question, item.text)


def test_answers_use_words_of_their_stories() -> None:
    """Check that the words of an answer, except for its sentence frame and its question, are in the story."""
    frames = {word for plot in plots() for ask in plot.asks for form in ask.answers for word in told(form)}
    frames |= {word for _, forms, _, _ in words.ASKS for form in forms for word in told(form)}
    for item in tales():
        for question in item.questions:
            allowed = frames | set(told(item.text)) | set(told(question.question))
            answer = question.answer.replace("'s birthday", "")
            assert not [word for word in told(answer) if len(word) > 4 and word not in allowed], (question, item.text)


def asked(item: Tale, *parts: str) -> list[Question]:
    return [question for question in item.questions if any(part in question.question for part in parts)]


def test_the_weather_is_asked_only_if_it_is_told() -> None:
    """A story with warm milk or a fine day does not tell the weather."""
    posed = [(item, question) for item in tales() for question in asked(item, "weather")]
    assert len(posed) > 20
    for item, question in posed:
        kind = told(question.answer)[-1]
        when = (
            rf"{kind} (morning|afternoon|evening|night|\w+day)\b|(morning|afternoon|evening|night) was {kind}|snowy day"
        )
        assert re.search(when, item.text), (question, item.text)
        assert kind != "rainy" or "stormy" not in " ".join(question.wrong)


@pytest.mark.parametrize(("days", "asked_for"), [("[w.day]", True), ("[w.day] and [w.day2]", False), ("no day", False)])
def test_the_day_is_asked_only_if_one_day_is_told(days: str, asked_for: bool) -> None:
    one = world.draw_cast(random.Random(1), animals=0.0, weather="dry", adjectives=())
    ask = Ask(questions=("What day was it?",), answers=("It was *.",), right="[w.day]", pool="day", outcome="")
    assert (world._pose(one, ask, world._spoken(one.expand(f"It was {days}."))) is not None) == asked_for


def test_the_name_of_the_boy_is_not_asked_about_two_boys() -> None:
    sexes = {**dict.fromkeys(words.GIRLS, "girl"), **dict.fromkeys(words.BOYS, "boy")}
    posed = [item for item in tales() if asked(item, "name of the girl", "name of the boy")]
    assert len(posed) > 20
    for item in posed:
        alike = {name for name, sex in sexes.items() if sex == sexes[item.about[0]]}
        race = item.about[1] == "a race"  # a stranger may win it
        assert race or not alike & (set(re.findall(r"\w+", item.text)) - {item.about[0]}), item.text


def test_sentences_end_and_speech_is_quoted() -> None:
    for item in tales():
        assert not re.search(r"[a-z] (They|It|He|She|There|Then|But|And)\b", item.text), item.text
        for sentence in re.findall(r"(?:^|[.!?] )([^.!?\"\n]+, said [A-Z]\w+\.)", item.text):
            raise AssertionError(sentence)


def test_time_and_travel_fit_the_story() -> None:
    written = {
        topic: [item.text for item in tales() if item.about[1] == topic] for topic in ("a trip", "a seed", "bedtime")
    }
    assert all(len(texts) > 5 for texts in written.values())
    for text in written["a trip"]:
        assert not re.search(r"(One|On a|Early one|Late one|This|It was a) (\w+ )?afternoon", text), text
        if re.search(r"\bby (ship|boat)\b", text):
            assert not re.search(r"road|rails|[Hh]ouses flew|Sheep|A cow", text), text
    for text in written["a seed"]:
        assert not re.search(r"(summer|autumn)\b.*\bseed!", text.split("hole")[0]), text
    for text in written["bedtime"]:
        assert not re.search(r"dinner|[Tt]he sun went|rest of the day|went home|That night, .* (fell|slept)", text), (
            text
        )


def test_some_wrong_answers_come_from_the_story() -> None:
    colors = [(item, q) for item in tales() for q in item.questions if q.question.startswith("Who")]
    inside = sum(
        any(word.rstrip(".") in item.text for a in q.wrong for word in a.split() if word.rstrip(".") in NAMES)
        for item, q in colors
    )
    assert inside > 0.2 * len(colors)


@pytest.mark.thorough
def test_facts_are_many_and_well_formed() -> None:
    assert len({item.question for item in facts()}) > 300
    for item in facts():
        assert len({item.answer, *item.wrong}) == 4, item
        assert not [text for text in (item.question, item.answer, *item.wrong) if untidy(text)], item


@pytest.mark.thorough
def test_every_wording_of_a_right_fact_is_right() -> None:
    """A model may answer in another wording than the one that was drawn with the question."""
    wordings: dict[str, list[Question]] = {}
    for item in facts():
        wordings.setdefault(item.question, []).append(item)
    pairs = [(one, other) for same in wordings.values() for one, other in pairwise(same)]
    assert len(pairs) > 1000
    assert not [(one, other.answer) for one, other in pairs if not is_right(other.answer, one)]


def _value(text: str) -> int:
    """Return the last number word of a text."""
    return [NUMBER[word] for word in told(text) if word in NUMBER][-1]


def test_sums_are_right() -> None:
    checked = 0
    for item in facts():
        numbers = [NUMBER[word] for word in told(item.question) if word in NUMBER]
        if digits := re.search(r"(\d+) (\+|-|plus|minus) (\d+)", item.question):
            a, b = int(digits[1]), int(digits[3])
            right = a + b if digits[2] in ("+", "plus") else a - b
            checked += 1
            assert int(re.findall(r"\d+", item.answer)[-1]) == right, item
            assert right not in [int(re.findall(r"\d+", text)[-1]) for text in item.wrong], item
            continue
        if re.search(
            r"plus|^What do .* make|^How much is \w+ and|^Add|more\. How|in a bag| and \w+ has ", item.question
        ):
            right = sum(numbers)
        elif m := re.search(r"minus|take away|^Take|away\.|on a table", item.question):
            right = abs(numbers[0] - numbers[1]) if m else 0
        elif "comes after" in item.question and len(numbers) == 1:
            right = numbers[0] + 1
        elif "comes before" in item.question and len(numbers) == 1:
            right = numbers[0] - 1
        elif "biggest" in item.question:
            right = max(numbers)
        elif "smallest" in item.question:
            right = min(numbers)
        else:
            continue
        checked += 1
        assert _value(re.sub(r" left|is left", "", item.answer)) == right, item
        assert right not in [_value(text) for text in item.wrong], item
    assert checked > 300


def test_days_and_months_follow_each_other() -> None:
    checked = 0
    for item in facts():
        for names in (words.DAYS, words.MONTHS, words.SEASONS):
            present = [name for name in names if re.search(rf"\b{name}\b", item.question)]
            if (
                len(present) == 1
                and re.search(r"comes|follows|before", item.question)
                and "first flowers" not in item.question
            ):
                step = -1 if "before" in item.question else 1
                right = names[(names.index(present[0]) + step) % len(names)]
                remainder = item.answer.replace(present[0], "", 1)
                assert right.lower() in remainder.lower(), item
                checked += 1
    assert checked > 50


def test_table_facts_offer_no_other_true_value() -> None:
    for name, (_, _, rows) in words.FACTS.items():
        assert len({key for key, _ in rows}) == len(rows), name
        assert len({value for _, value in rows}) >= 4, name
    for name, key in words.ALSO_TRUE:
        assert key in dict(words.FACTS[name][2]), (name, key)
    for item in facts():
        if item.question.startswith(("What is a robin", "What kind of thing is a bee")):
            assert not any("animal" in text for text in item.wrong)


def test_a_question_without_a_place_for_the_answer_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'Who.' in plot 'odd' has no \*"):
        _read_plot("odd # any # dry # a hat\nQ: Who? # It was Tom. # [h] # who\n\n[h] came.")


@pytest.mark.parametrize(("template", "fault"), [("{a|b", "leaves a brace open"), ("a}", "closes a brace")])
def test_a_broken_template_is_refused(template: str, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        world._parse(template)


def test_a_hero_has_a_plot_that_is_likelier_than_the_others() -> None:
    """Greedy decoding then tells different stories of different heroes."""
    heroes = {plot.name: world._typical_heroes(plot.name, words.GIRLS) for plot in plots()}
    assert sorted(name for names in heroes.values() for name in names) == sorted(words.GIRLS)
    plot = max(heroes, key=lambda name: len(heroes[name]))
    casts = [
        draw_cast(random.Random(seed), animals=0.0, weather="dry", adjectives=(), plot=plot) for seed in range(600)
    ]
    girls = [cast.cast["h"][""] for cast in casts if cast.cast["h"]["sex"] == "f"]
    share = sum(name in heroes[plot] for name in girls) / len(girls)
    even = len(heroes[plot]) / len(words.GIRLS)
    assert share == pytest.approx(
        world._TYPICAL + (1 - world._TYPICAL) * even, abs=0.07
    )  # three deviations of 300 draws
    for cast in casts:
        assert cast.cast["h"][""] != cast.cast["f"][""]
