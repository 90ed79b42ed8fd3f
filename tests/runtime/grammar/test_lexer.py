"""Test the bound on the memory of the lexer's states."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.lexer import MOST_LEXER_BYTES
from edgedec.runtime.grammar.tools import tool_grammar
from edgedec.runtime.server.memory import request_bytes
from tests.runtime.grammar.support.growth import growth_in_a_fresh_process

STRING: dict[str, Any] = {"type": "string"}


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


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


KINDS = [STRING, {"type": "integer"}, {"type": "boolean"}, {"type": "array", "items": STRING}, {"type": "number"}]
TOOLS = {
    "one": [tool("get_weather", city=STRING)],
    "twenty": [tool(f"tool_{at}", **{f"a{each}": KINDS[each % 5] for each in range(6)}) for at in range(20)],
    "most": [tool(f"function_number_{at}", **{f"a{each}": STRING for each in range(4)}) for at in range(128)],
    "short": [tool("w", city=STRING | {"maxLength": 20})],
    "length": [tool("w", city=STRING | {"maxLength": 200})],
    "longer": [tool("w", city=STRING | {"minLength": 700, "maxLength": 800})],
    "enum": [tool("w", c={"enum": [f"value number {at} of the list" for at in range(300)]})],
    "formats": [tool("w", d=STRING | {"format": "date-time"}, e=STRING | {"format": "email"})],
}


@pytest.mark.nightly(sample=5)
@pytest.mark.thorough
@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize("tools", TOOLS)
def test_calls_of_tools_take_no_more_than_they_are_charged_for(tools: str, choice: str) -> None:
    grammar = tool_grammar(TOOLS[tools], choice)
    assert grammar.lexer_bytes < MOST_LEXER_BYTES / 3
    charged = request_bytes(prompt=0, answer=0, program=len(grammar.program), lexer=grammar.lexer_bytes)
    tokens, growth = growth_in_a_fresh_process(grammar)
    assert tokens > 1
    assert growth <= charged + (1 << 19)


def test_tools_with_expressions_are_charged_for_the_most_states() -> None:
    assert tool_grammar([tool("w", city=STRING | {"pattern": "a+"})]).lexer_bytes == MOST_LEXER_BYTES
