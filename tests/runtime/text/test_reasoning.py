"""Test the division of an answer into reasoning and content."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.text.reasoning import (
    BEGIN,
    END,
    ReasoningPlace,
    ReasoningSplitter,
    Thought,
    reasoning_place,
)

PLACES: tuple[ReasoningPlace, ...] = ("before", "within", "after")
# Texts of tags, parts of them, blanks and letters.
TEXTS = st.lists(st.sampled_from([BEGIN, END, "<", "</", "th", "ink", ">", " ", "\n", "\n\n", "a", "b c"])).map("".join)


def divided(pieces: Sequence[str], place: ReasoningPlace) -> tuple[str, str, bool]:
    splitter = ReasoningSplitter(place)
    parts = [part for piece in pieces for part in splitter.feed(piece)]
    is_within = splitter.within
    parts += splitter.finish()
    assert all(parts), "a part is empty"
    thoughts = [part for part in parts if isinstance(part, Thought)]
    assert parts[: len(thoughts)] == thoughts, "content comes before reasoning"
    assert splitter.reasoning == "".join(thoughts)
    assert splitter.content == "".join(parts[len(thoughts) :])
    return splitter.reasoning, splitter.content, is_within


def expected(text: str, place: ReasoningPlace) -> tuple[str, str, bool]:
    """Return the same of a whole text by a regular expression."""
    begin = "" if place == "within" else re.escape(BEGIN)
    if place == "after" or (match := re.match(rf"\s*{begin}(?s:(.*?)(?:({END})(.*))?$)", text)) is None:
        return "", text, False
    thoughts, end, rest = match.groups()
    return thoughts.strip(), (rest or "").lstrip(), end is None


@given(text=TEXTS, place=st.sampled_from(PLACES), data=st.data())
def test_any_pieces_of_any_text_are_divided_alike(text: str, place: ReasoningPlace, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert divided(pieces, place) == expected(text, place)


@pytest.mark.parametrize(
    ("text", "place", "reasoning", "content"),
    [
        ("<think>\nWhy?\n</think>\n\nSo.", "before", "Why?", "So."),
        ("\n<think>Why?</think>So.", "before", "Why?", "So."),
        ("Why?\n</think>\n\nSo.", "within", "Why?", "So."),
        ("</think>\n\nSo.", "within", "", "So."),
        ("<think>\n\n</think>\n\nSo.", "before", "", "So."),
        ("So, <think> is a tag, and </think> is one.", "before", "", "So, <think> is a tag, and </think> is one."),
        (" So.\n", "before", "", " So.\n"),
        ("So.</think>", "after", "", "So.</think>"),
        ("<think>a</think>b<think>c</think>d", "before", "a", "b<think>c</think>d"),
        ("Why, and </thi", "within", "Why, and </thi", ""),
        ("<thin", "before", "", "<thin"),
        ("<think>", "before", "", ""),
    ],
)
def test_examples(text: str, place: ReasoningPlace, reasoning: str, content: str) -> None:
    assert divided([*text], place)[:2] == (reasoning, content)


def test_reasoning_and_content_are_given_out_as_soon_as_they_are_known() -> None:
    splitter = ReasoningSplitter("before")
    given_out = [splitter.feed(character) for character in "<think>ab  c<d</think>\n e"]
    assert given_out[:7] == [[]] * 7
    assert given_out[7:12] == [["a"], ["b"], [], [], ["  c"]]
    assert given_out[12:14] == [[], ["<d"]]
    assert given_out[14:-1] == [[]] * 10
    assert given_out[-1] == ["e"]


@pytest.mark.parametrize(
    ("prompt", "place"),
    [
        ("<|assistant|>", "before"),
        ("<|assistant|><think>", "within"),
        ("<|assistant|><think>\n", "within"),
        ("<|assistant|><think>\n\n</think>\n\n", "after"),
        ("<|user|>What is <think>?<|assistant|>", "before"),
        ("", "before"),
    ],
)
def test_the_place_after_a_prompt(prompt: str, place: ReasoningPlace) -> None:
    assert reasoning_place(prompt) == place
