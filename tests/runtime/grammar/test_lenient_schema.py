"""Schemas of other dialects: what is said in other words, what is left out and named, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.lenient_schema import lenient_schema
from edgedec.runtime.grammar.schema_keywords import ANNOTATIONS, FORMATS, KEYWORDS
from edgedec.runtime.grammar.tools import tool_grammar

STRING: dict[str, Any] = {"type": "string"}
BIG = 1 << 63


@pytest.mark.parametrize(
    ("schema", "expected", "names"),
    [
        ({"type": "integer", "format": "int32"}, {"type": "integer"}, ["format=int32"]),
        ({**STRING, "format": "date", "title": "t", "$comment": "c"}, {**STRING, "format": "date"}, []),
        ({**STRING, "x-order": 1, "x_y": {}, "whatever": [1]}, STRING, ["x-order=1", "x_y", "whatever"]),
        ({**STRING, "description": None, "enum": None, "default": None}, STRING, []),
        ({**STRING, "nullable": True}, {"type": ["string", "null"]}, []),
        ({**STRING, "nullable": False}, STRING, []),
        ({**STRING, "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}, []),
        ({"const": "a", "nullable": True}, {"anyOf": [{"const": "a"}, {"type": "null"}]}, []),
        ({"anyOf": [STRING], "nullable": True}, {"anyOf": [{"anyOf": [STRING]}, {"type": "null"}]}, []),
        ({"nullable": True}, {}, []),
        ({"type": "array", "uniqueItems": True}, {"type": "array"}, ["uniqueItems=true"]),
        (
            {"type": "array", "uniqueItems": True, "maxItems": 1},
            {"type": "array", "uniqueItems": True, "maxItems": 1},
            [],
        ),
        ({"type": "STRING"}, STRING, []),
        ({"type": ["int", "integer", "None"]}, {}, ["type"]),
        ({"type": "any"}, {}, ["type=any"]),
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}, []),
        ({"maximum": 1, "exclusiveMaximum": False}, {"maximum": 1}, []),
        ({"minimum": -BIG, "maximum": 5}, {"maximum": 5}, [f"minimum={-BIG}"]),
        ({"minLength": 2.0}, {"minLength": 2}, []),
        ({**STRING, "required": True}, STRING, ["required=true"]),
        ({"enum": []}, {}, ["enum"]),
        ({"properties": {}, "required": ["a", "a"]}, {"properties": {"a": {}}, "required": ["a"]}, []),
        ({"$ref": "http://example.org/x"}, {}, ["$ref=http://example.org/x"]),
        ({"items": {"$ref": "#/$defs/x"}}, {"items": {}}, ["items.$ref=#/$defs/x"]),
        ({"properties": {"a": {"not": {}}}}, {"properties": {"a": False}}, []),
        ({"anyOf": [STRING, {"not": True}]}, {"anyOf": [STRING, False]}, []),
        ({"type": "OBJECT", "required": ["a"]}, {"type": "object", "required": ["a"], "properties": {"a": {}}}, []),
        ({"properties": {"a": {"description": "only words"}}}, {"properties": {"a": {}}}, []),
        ({"not": STRING, "if": {}, "then": {}}, {}, ["not", "if", "then"]),
        ({"items": {"not": STRING}, "type": "array"}, {"items": {}, "type": "array"}, ["items.not"]),
        ({"properties": {"a": {"x-b": 1}}}, {"properties": {"a": {}}}, ["properties.a.x-b=1"]),
        ({"anyOf": [{"$id": "i"}, STRING]}, {"anyOf": [{}, STRING]}, ["anyOf.0.$id=i"]),
        ({**STRING, "pattern": "(?=x)"}, STRING, ["pattern"]),
        (
            {"properties": {"a": {"oneOf": [STRING, {**STRING, "minLength": 1}]}}},
            {"properties": {"a": {"anyOf": [STRING, {**STRING, "minLength": 1}]}}},
            ["properties.a.oneOf"],
        ),
        ({"type": "object", "minProperties": 5}, {"type": "object"}, ["minProperties=5"]),
        ({"additionalProperties": {}, "$defs": {}}, {"additionalProperties": {}, "$defs": {}}, []),
    ],
)
def test_a_schema_of_another_dialect(schema: dict[str, Any], expected: Any, names: list[str]) -> None:
    assert lenient_schema(schema, "s") == (expected, tuple(f"s.{name}" for name in names))
    Grammar.json_schema(expected)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": 5}, "'type' at #/type"),
        ({"$ref": "#/properties", "properties": {}}, "where there is no schema"),
        ({"$ref": 5}, "'$ref' at #/$ref must be a text"),
        ({"properties": []}, "'properties' at #/properties"),
        ({"enum": [BIG]}, "the integer"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "requires itself"),
    ],
)
def test_a_wrong_schema_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        lenient_schema(schema, "s")


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(UsageError, match="nested too deeply"):
        lenient_schema(schema, "s")


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        (None, [{}]),
        ({}, [{}]),
        ({"type": "object"}, [{}, {"a": 1}]),
        ({"type": "object", "properties": {}}, [{}]),
        ({"properties": {"a": STRING}}, [{}, {"a": "b"}]),
        ({"type": ["object", "null"], "properties": {"a": STRING}}, [{"a": "b"}]),
        ({"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}, "required": ["a"]}, [{"a": 1}]),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "properties": {"a": STRING}}}}, [{"a": "b"}]),
    ],
)
def test_parameters_as_clients_send_them(parameters: Any, arguments: list[Any]) -> None:
    grammar = tool_grammar([{"type": "function", "function": {"name": "f", "parameters": parameters}}], "required")
    assert grammar.ignored == ()
    rule = next(line for line in grammar.source.splitlines() if line.startswith("tool_0"))
    written = __import__("json").loads(rule.partition("%json ")[2].removesuffix(' "}"'))
    for one in arguments:
        jsonschema.validate(one, written)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "ab"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer", "object", "array", ["string", "null"]]),
            "enum": st.lists(VALUES, min_size=1, max_size=2),
            "const": VALUES,
            "minimum": st.integers(-2, 2),
            "maxLength": st.integers(0, 2),
            "pattern": st.sampled_from(["a", "(?=a)", "^(?!b)"]),
            "uniqueItems": st.booleans(),
            "required": st.lists(st.sampled_from("ab"), max_size=2, unique=True),
            "x-a": VALUES,
            "minProperties": st.integers(0, 3),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array"]),
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "items": inner,
            "not": inner,
            "if": inner,
            "then": inner,
            "contains": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
        },
    ),
    max_leaves=4,
)


@pytest.mark.thorough
@settings(max_examples=60)
@given(SCHEMAS, VALUES)
def test_what_is_left_out_only_loosens(schema: dict[str, Any], value: Any) -> None:
    try:
        lenient, names = lenient_schema(schema, "s")
    except UsageError:
        return
    validator = jsonschema.Draft202012Validator
    if validator(schema).is_valid(value):
        assert validator(lenient).is_valid(value)
    elif not names:
        assert not validator(lenient).is_valid(value)


def test_the_page_says_what_happens_to_keywords(project_root: Path) -> None:
    text = (project_root / "docs" / "structured-output.md").read_text("utf-8")
    table, _, dialects = text.partition("### Schemas of other programs")
    for title in ("constrain no value", "cannot be enforced"):
        row = next(line for line in dialects.splitlines() if line.startswith("|") and title in line)
        keywords = re.findall("`([^`]+)`", row.split("|")[2])
        assert len(keywords) > 15
        for keyword in keywords:
            schema, names = lenient_schema({"type": "string", keyword: {"minLength": 1}}, "s")
            assert (schema, names) == ({"type": "string"}, (f"s.{keyword}",)), keyword
    enforced = set(re.findall("`([^`]+)`", table.partition("| keywords | notes |")[2]))
    assert {*KEYWORDS, *ANNOTATIONS, *FORMATS} <= enforced
