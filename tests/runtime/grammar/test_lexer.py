"""Test the bound on the memory of the lexer's states."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.lexer import MOST_LEXER_BYTES
from tests.runtime.grammar.support.growth import growth_in_a_fresh_process

STRING = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object", "properties": {"a": STRING}}, 0),
        ({"enum": ["pattern", "maxLength"]}, 0),
        ({"type": "object", "properties": {"pattern": STRING, "maxLength": {"type": "integer"}}}, 0),
        (STRING | {"maxLength": 10}, 10 << 10),
        (STRING | {"minLength": 20}, 20 << 10),
        ({"type": "array", "items": STRING | {"minLength": 3, "maxLength": 5}}, 5 << 10),
        (STRING | {"maxLength": 1_000_000}, MOST_LEXER_BYTES),
        ({"anyOf": [STRING | {"maxLength": 2}, STRING | {"pattern": "a+"}]}, MOST_LEXER_BYTES),
        ({"type": "object", "patternProperties": {"a+": STRING}}, MOST_LEXER_BYTES),
        ({"$defs": {"a": STRING | {"pattern": "a+"}}, "$ref": "#/$defs/a"}, MOST_LEXER_BYTES),
    ],
)
def test_a_schema_is_charged_for_expressions_and_lengths(schema: dict[str, Any], expected: int) -> None:
    assert Grammar.json_schema(schema).lexer_bytes == expected


def test_other_grammars_are_charged_for_the_most_states() -> None:
    assert Grammar.regex("a").lexer_bytes == Grammar.lark('start: "a"').lexer_bytes == MOST_LEXER_BYTES


@pytest.mark.thorough
@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.regex(r"([a-z ]*[a-m][a-z ]{30}){3}x.*"),
        Grammar.regex(r"(.|\n)*[aeiou](.|\n){14}[xyz](.|\n)*"),
        Grammar.regex("|".join(rf"(.|\n)*{letter}(.|\n){{12}}{letter.upper()}" for letter in "abcdefghijklmnopqrst")),
        Grammar.json_schema(STRING | {"minLength": 1500, "maxLength": 4000}),
    ],
    ids=["nested", "subsets", "alternatives", "length"],
)
def test_no_text_takes_more_than_it_is_charged_for(grammar: Grammar) -> None:
    """Measure in a process of its own: pytest's is large, and what its other tests freed or left would be counted too."""
    tokens, growth = growth_in_a_fresh_process(grammar)
    assert tokens > 1
    assert growth <= grammar.lexer_bytes + (1 << 20)
