"""Tools: the grammar of their calls, the parser of calls, and the description for templates that have none."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.tool_calls import ToolCallDelta, ToolCallParser
from edgedec.runtime.grammar.tools import tool_grammar, with_instructions
from tests.runtime.grammar.support.random_writer import END, compiler, demo_tokenizer, random_text


def tool(name: str, parameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, "description": f"It does {name}.", **more}
    return {"type": "function", "function": function if parameters is None else {**function, "parameters": parameters}}


CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 8}},
}
TOOLS = [tool("get_weather", CITY), tool("stop.now")]


def follows(grammar: Grammar, text: str) -> bool:
    """Return whether a text is an answer of a grammar, each of its bytes written by itself."""
    constraint = compiler().constraint(grammar, prompt_length=0, ends=(END,))
    ids = np.concatenate([demo_tokenizer().encode(text, add_special=False), np.zeros(0, np.int32)]).astype(np.int32)
    for at, token in enumerate(ids):
        mask = constraint.allowed(ids[:at])
        if mask is None or not mask[token]:
            return False
    last = constraint.allowed(ids)
    return last is None or bool(last[END])


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


WEATHER, STOP = call("get_weather", '{"city": "Oslo"}'), call("stop.now", "{}")


@pytest.mark.parametrize(
    ("text", "auto", "required", "named", "single"),
    [
        ("It rains.", True, False, False, False),
        ("", True, False, False, False),
        (WEATHER, True, True, True, True),
        (f"Let me see. {WEATHER}", True, False, False, False),
        (f"{WEATHER}\n{WEATHER}", True, True, True, False),
        (f"{WEATHER}\n{STOP}", True, True, False, False),
        (STOP, True, True, False, True),
        (f"{WEATHER} It rains.", False, False, False, False),
        (call("get_weather", '{"town": "Oslo"}'), False, False, False, False),
        (call("get_wether", '{"city": "Oslo"}'), False, False, False, False),
        (call("stop.now", '{"at": 1}'), False, False, False, False),
        ("a <tool_call> in a text", False, False, False, False),
        (WEATHER[:-1], False, False, False, False),
    ],
)
def test_choices_allow_their_texts(text: str, auto: bool, required: bool, named: bool, single: bool) -> None:
    assert follows(tool_grammar(TOOLS), text) == auto
    assert follows(tool_grammar(TOOLS, "required"), text) == required
    assert follows(tool_grammar(TOOLS, "get_weather"), text) == named
    assert follows(tool_grammar(TOOLS, "required", parallel=False), text) == single


def test_every_required_call_has_valid_arguments() -> None:
    grammar = tool_grammar(TOOLS, "required")
    texts = [text for seed in range(12) if (text := random_text(grammar, seed)) is not None]
    assert texts
    for text in texts:
        parser = ToolCallParser()
        parser.feed(text.decode())
        assert parser.finish() == []
        assert parser.calls
        assert parser.content == ""
        for one in parser.calls:
            schema = CITY if one.name == "get_weather" else {"maxProperties": 0}
            jsonschema.Draft202012Validator(schema).validate(json.loads(one.arguments))


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ([], "auto", "tools must be 1 to 128 definitions, not 0"),
        ([tool("a")] * 2, "auto", "the function 'a' twice"),
        ([tool("a b")], "auto", r"tools\[0\].function.name must be"),
        ([{"type": "code"}], "auto", r"tools\[0\] must be"),
        ([tool("a", {"type": "string"})], "auto", r"tools\[0\].function.parameters: it must be a JSON schema"),
        (
            [tool("b"), tool("a", {"type": "object", "properties": {"x": {"uniqueItems": True}}}, strict=True)],
            "auto",
            r"tools\[1\].function.parameters: .* 'uniqueItems' at #/properties/x/uniqueItems",
        ),
        (
            [tool("a", {"type": "object", "properties": {"x": {"pattern": "(?=x)"}}}, strict=True)],
            "auto",
            r"tools\[0\].function.parameters: .* 'pattern' at #/properties/x/pattern",
        ),
        ([tool("a")], "c", "the tool to call must be auto, required or one of a, not 'c'"),
    ],
)
def test_wrong_tools_are_refused(tools: list[dict[str, Any]], choice: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tool_grammar(tools, choice)


def parsed(text: str, cuts: list[int]) -> tuple[ToolCallParser, list[str | ToolCallDelta]]:
    ids = itertools.count()
    parser = ToolCallParser(lambda: f"call_{next(ids)}")
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    parts = [part for start, end in zip([0, *ends], ends, strict=False) for part in parser.feed(text[start:end])]
    return parser, [*parts, *parser.finish()]


ARGUMENTS = '{"a": {"b": ["}", "\\"{", "\\\\"], "c": "</tool_call>"}}'
TEXTS = {
    "content": ("A < b and <tool", "A < b and <tool", []),
    "one call": (f"Well. {call('f', ARGUMENTS)}", "Well. ", [("f", ARGUMENTS)]),
    "calls": (
        f"{call('f', '{}')}\n{call('g', ARGUMENTS)}\n\n{call('f', '{}')}",
        "",
        [("f", "{}"), ("g", ARGUMENTS), ("f", "{}")],
    ),
    "text after a call": (f"{call('f', '{}')}\n Done <b>", "Done <b>", [("f", "{}")]),
    "tight": ('<tool_call>{"name":"f","arguments":{}}</tool_call>', "", [("f", "{}")]),
    "no call": ("<tool_call>what?</tool_call>!", "<tool_call>what?</tool_call>!", []),
    "a long beginning": ("<tool_call>" + "x" * 400, "<tool_call>" + "x" * 400, []),
    "cut in the beginning": ('so <tool_call>{"name": "f"', 'so <tool_call>{"name": "f"', []),
    "cut in the arguments": ('<tool_call>{"name": "f", "arguments": {"a": [1', "", [("f", '{"a": [1')]),
    "cut after the arguments": ('<tool_call>{"name": "f", "arguments": {}', "", [("f", "{}")]),
    "a call after a tag": ("<tool_call>" + call("f", "{}"), "<tool_call>", [("f", "{}")]),
}


@pytest.mark.thorough(sample=4)
@pytest.mark.parametrize("name", TEXTS)
@given(cuts=st.lists(st.integers(0, 200), max_size=40))
def test_content_and_calls_do_not_depend_on_the_pieces(name: str, cuts: list[int]) -> None:
    text, content, calls = TEXTS[name]
    parser, parts = parsed(text, cuts)
    assert parser.content == content == "".join(part for part in parts if isinstance(part, str))
    assert parser.within_call == (name == "cut in the arguments")
    assert [(one.name, one.arguments) for one in parser.calls] == calls
    deltas = [part for part in parts if isinstance(part, ToolCallDelta)]
    for index, one in enumerate(parser.calls):
        own = [delta for delta in deltas if delta.index == index]
        assert [delta.name for delta in own] == [one.name, *[None] * (len(own) - 1)]
        assert [delta.id for delta in own] == [f"call_{index}", *[None] * (len(own) - 1)]
        assert "".join(delta.arguments for delta in own) == one.arguments
    assert [delta.index for delta in deltas] == sorted(delta.index for delta in deltas)


def test_what_is_too_long_for_the_beginning_of_a_call_is_not_held_back() -> None:
    assert ToolCallParser().feed("<tool_call>" + "x" * 300) == ["<tool_call>", "x" * 300]
    assert ToolCallParser().feed('<tool_call>{"name"') == []


def test_parts_have_openais_form() -> None:
    parser, parts = parsed(call("f", '{"a": 1}'), [])
    deltas = [part.as_json() for part in parts if isinstance(part, ToolCallDelta)]
    assert deltas == [
        {"index": 0, "id": "call_0", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a": 1}'}},
    ]
    assert [one.as_json() for one in parser.calls] == [
        {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    ]
    assert ToolCallParser().feed(call("f", "{}"))[0].id != ToolCallParser().feed(call("f", "{}"))[0].id  # type: ignore[union-attr]


def test_a_template_without_tools_gets_a_description_in_the_first_message() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    with_tools = with_instructions("{{ messages }}", messages, TOOLS)
    assert with_tools[0]["content"].endswith("\n\nHi")
    assert "get_weather" in with_tools[0]["content"]
    assert "<tool_call>" in with_tools[0]["content"]
    assert with_tools[1:] == messages[1:]
    assert messages[0]["content"] == "Hi"
    assert with_instructions("{% if tools %}{{ tools }}{% endif %}", messages, TOOLS) == messages
