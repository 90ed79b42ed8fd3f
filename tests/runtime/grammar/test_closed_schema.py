"""Test the schemas of tools' arguments, which allow no properties beyond the named ones."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.grammar.closed_schema import closed_schema
from edgedec.runtime.grammar.tools import tool_grammar
from tests.runtime.grammar.test_tools import call, follows, tool

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
CLOSED = {**POINT, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (POINT, CLOSED),
        ({"type": "object", "properties": {}}, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"properties": {"at": POINT}}, {"properties": {"at": CLOSED}, "additionalProperties": False}),
        ({"type": "array", "items": POINT}, {"type": "array", "items": CLOSED}),
        ({"prefixItems": [POINT, True]}, {"prefixItems": [CLOSED, True]}),
        ({"anyOf": [POINT, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"$ref": "#/$defs/p", "$defs": {"p": POINT}}, {"$ref": "#/$defs/p", "$defs": {"p": CLOSED}}),
    ],
)
def test_objects_that_name_their_properties_are_closed(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert closed_schema(schema) == expected
    jsonschema.Draft202012Validator.check_schema(dict(closed_schema(schema)))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**POINT, "additionalProperties": True},
        {**POINT, "additionalProperties": {"type": "string"}},
        {**POINT, "patternProperties": {"^y": {}}},
        {**POINT, "required": ["x", "y"]},
        {**POINT, "minProperties": 2},
        {"allOf": [POINT, {"properties": {"y": {"type": "integer"}}}]},
        {**POINT, "anyOf": [{"properties": {"y": {}}, "required": ["y"]}, {"properties": {"z": {}}}]},
        {"$ref": "#/$defs/p", "properties": {"y": {}}, "$defs": {"p": POINT}},
        {"properties": {"a": {"allOf": [POINT, POINT]}, "b": POINT}},
    ],
)
def test_a_schema_that_speaks_of_other_properties_stays_open(schema: dict[str, Any]) -> None:
    assert closed_schema(schema) == schema


NAMES = st.sampled_from("abc")
SCHEMAS = st.recursive(
    st.sampled_from([{"type": "integer"}, {"type": "object"}, {"const": 1}, True]),
    lambda inner: (
        st.fixed_dictionaries(
            {"properties": st.dictionaries(NAMES, inner, max_size=2)},
            optional={
                "type": st.just("object"),
                "required": st.lists(NAMES, unique=True, max_size=2),
                "additionalProperties": inner,
                "minProperties": st.integers(0, 2),
            },
        )
        | st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)})
        | st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2), "properties": st.just({"a": True})})
        | st.fixed_dictionaries({"type": st.just("array"), "items": inner})
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.sampled_from([1, None, "x"]),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=6,
)


@pytest.mark.thorough
@given(SCHEMAS, VALUES)
def test_every_value_of_the_closed_schema_is_one_of_the_schema(schema: Any, value: Any) -> None:
    if not isinstance(schema, dict):
        return
    if jsonschema.Draft202012Validator(dict(closed_schema(schema))).is_valid(value):
        jsonschema.Draft202012Validator(schema).validate(value)


def test_the_arguments_of_a_tool_are_closed() -> None:
    grammar = tool_grammar([tool("move", {"type": "object", "properties": {"to": POINT}})], "required")
    assert follows(grammar, call("move", '{"to": {"x": 1}}'))
    assert follows(grammar, call("move", "{}"))
    assert not follows(grammar, call("move", '{"to": {"x": 1}, "y": 2}'))
    assert not follows(grammar, call("move", '{"to": {"x": 1, "y": 2}}'))
    wide = tool_grammar([tool("move", {"type": "object", "additionalProperties": {"type": "integer"}})], "required")
    assert follows(wide, call("move", '{"y": 2}'))
