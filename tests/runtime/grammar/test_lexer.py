"""Test the bound on the memory of the lexer's states."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from edgedec.errors import EdgedecError
from edgedec.runtime.grammar.compiler import GrammarCompiler
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.lexer import MOST_LEXER_BYTES
from tests.runtime.grammar.support.random_writer import demo_tokenizer
from tests.runtime.grammar.test_cache import resident_bytes

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
    """Write at random until the end, or until the lexer has too many states."""
    compiler, random = GrammarCompiler(demo_tokenizer()), np.random.default_rng(1)
    compiler.prepare()
    before = most = resident_bytes()
    constraint = compiler.constraint(grammar, prompt_length=0)
    text = np.zeros(0, np.int32)
    with suppress(EdgedecError):
        for _ in range(600):
            if (mask := constraint.allowed(text)) is None or not mask.any():
                break
            text = np.append(text, random.choice(np.flatnonzero(mask)).astype(np.int32))
            most = max(most, resident_bytes())
    assert len(text) > 1
    assert most - before <= grammar.lexer_bytes + (1 << 20)
