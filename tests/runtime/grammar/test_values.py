"""Test what constants and types tell about the values of schemas, beside a validator."""

from __future__ import annotations

import itertools
import json
from typing import Annotated, Any, Literal

import jsonschema
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.json_text import reference_place
from edgedec.runtime.grammar.lenient_schema import lenient_schema
from edgedec.runtime.grammar.schema import Schema
from edgedec.runtime.grammar.values import LIMIT_ARRAYS, Disjoint, unique_arrays

CONSTANTS = [None, True, False, 0, 1, 1.5, 2, "a", "b", [], [1], {}, {"k": "a"}, {"k": "b"}, {"k": 1, "m": 2}]


def resolve_in(root: Any) -> Any:
    def resolve(reference: str) -> Any:
        schema = root
        for part in reference_place(reference):
            schema = schema[part]
        return schema

    return resolve


def kinds(*names: str) -> list[dict[str, Any]]:
    return [{"type": "object", "properties": {"k": {"const": name}}, "required": ["k"]} for name in names]


@pytest.mark.parametrize(
    ("schemas", "expected"),
    [
        ([{"const": 1}, {"const": 2}], True),
        ([{"const": 1}, {"const": 1.0}], False),
        ([{"const": 1}, {"const": True}], True),
        ([{"enum": [1, 2]}, {"enum": [3]}], True),
        ([{"enum": [1, 2]}, {"enum": [2]}], False),
        ([{"const": "a"}, {"type": "integer"}], True),
        ([{"const": 2.0}, {"type": "integer"}], False),
        ([{"const": 1.5}, {"type": "integer"}], True),
        ([{"type": "integer"}, {"type": "number"}], False),
        ([{"type": ["string", "null"]}, {"type": ["array", "object"]}], True),
        ([{"type": ["string", "null"]}, {"type": "null"}], False),
        ([{"const": {"a": 1}}, {"const": {"a": 1.0}}], False),
        (kinds("a", "b", "c"), True),
        (kinds("a", "b", "a"), False),
        ([{**one, "required": []} for one in kinds("a", "b")], False),
        ([{name: value for name, value in one.items() if name != "type"} for one in kinds("a", "b")], False),
        ([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], True),
        ([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], False),
        ([{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/a"}], False),
        ([{"anyOf": [{"const": 1}, {"const": 2}]}, {"oneOf": [{"const": 3}]}], True),
        ([{"anyOf": [{"const": 1}, {"const": 2}]}, {"const": 2}], False),
        ([{"allOf": [{"type": "string"}, {"minLength": 1}]}, {"type": "null"}], True),
        ([{"minLength": 1}, {"minimum": 1}], False),
        ([True, False], True),
        ([True, {"const": 1}], False),
    ],
)
def test_whether_schemas_exclude_each_other(schemas: list[Any], expected: bool) -> None:
    first, second = kinds("a", "b")
    root = {"$defs": {"a": first, "b": second, "loop": {"$ref": "#/$defs/loop"}}}
    assert Disjoint(resolve_in(root)).all(schemas) == expected


SCHEMAS = st.recursive(
    st.one_of(
        st.sampled_from(CONSTANTS).map(lambda value: {"const": value}),
        st.lists(st.sampled_from(CONSTANTS), min_size=1, max_size=3).map(lambda values: {"enum": values}),
        st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"]).map(
            lambda one: {"type": one}
        ),
        st.booleans(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts}),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"allOf": parts}),
        st.tuples(inner, st.sampled_from([["k"], ["m"], []])).map(
            lambda pair: {"type": "object", "properties": {"k": pair[0]}, "required": pair[1]}
        ),
    ),
    max_leaves=6,
)


@pytest.mark.thorough
@settings(max_examples=150)
@given(SCHEMAS, SCHEMAS)
def test_schemas_that_exclude_each_other_have_no_value_in_common(one: Any, other: Any) -> None:
    if Disjoint(lambda reference: None)(one, other):
        valid = [jsonschema.Draft202012Validator(schema).is_valid for schema in (one, other)]
        assert not [value for value in CONSTANTS if all(is_valid(value) for is_valid in valid)]


def test_the_work_is_bounded() -> None:
    wide = {"enum": [f"v{number}" for number in range(9000)]}
    root = {"$defs": {"w": wide}}
    # Each of the two would take hours without a bound.
    assert not Disjoint(resolve_in(root)).all([{"allOf": [{"$ref": "#/$defs/w"}]}] * 300)
    twice = {"anyOf": [{"$ref": "#/$defs/x"}] * 8}
    assert not Disjoint(resolve_in({"$defs": {"x": twice}})).all([twice] * 30)


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, pydantic.Field(ge=1, le=9)]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    loud: bool


class Version1(pydantic.BaseModel):
    version: Literal[1]
    a: bool


class Version2(pydantic.BaseModel):
    version: Literal[2, 3]
    b: bool


class Owner(pydantic.BaseModel):
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    form: Annotated[Version1 | Version2, pydantic.Field(discriminator="version")]
    colours: set[Literal["red", "green", "blue"]]
    flags: Annotated[set[bool], pydantic.Field(min_length=1)]


def test_the_unions_and_sets_of_pydantic_are_enforced() -> None:
    schema = Owner.model_json_schema()
    assert lenient_schema(schema, "s")[1] == (), "nothing is left out"
    enforced = json.loads(Schema(schema).text())
    assert [*enforced["properties"]["pet"]] == ["anyOf"]
    assert len(enforced["properties"]["colours"]["enum"]) == 16
    assert enforced["properties"]["flags"]["enum"] == [[False], [True], [False, True], [True, False]]
    Grammar.json_schema(schema)
    of_texts = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    assert lenient_schema(of_texts, "s")[1] == ("s.uniqueItems=true",)


@pytest.mark.parametrize(
    ("schema", "count"),
    [
        ({"items": {"enum": ["a", "b", "c", "d"]}}, 65),
        ({"items": {"enum": ["a", "b", "c", "d", "e"]}}, None),
        ({"items": {"enum": ["a", "b", "c", "d", "e"]}, "maxItems": 2}, 26),
        ({"items": {"enum": ["a", "b", "c"]}, "minItems": 3}, 6),
        ({"items": {"enum": ["a", "b"]}, "minItems": 3}, 0),
        ({"items": {"enum": ["a", 1, 1.0, True]}}, 16),
        ({"items": {"enum": ["a", 1], "type": "string"}}, 2),
        ({"items": {"const": "a", "title": "t"}}, 2),
        ({"items": {"type": "boolean"}}, 5),
        ({"items": {"$ref": "#/$defs/colour"}}, 5),
        ({"items": {"enum": ["a" * 300]}}, None),
        ({"items": {"enum": ["a"], "minLength": 1}}, None),
        ({"items": {"type": "string"}}, None),
        ({"items": {"enum": ["a"]}, "prefixItems": [{}]}, None),
        ({"items": {"enum": ["a"]}, "type": ["array", "null"]}, None),
        ({}, None),
    ],
)
def test_arrays_without_repetition(schema: dict[str, Any], count: int | None) -> None:
    whole = {"type": "array", "uniqueItems": True, **schema}
    root = {"$defs": {"colour": {"enum": ["red", "green"]}}}
    arrays = unique_arrays(whole, resolve_in(root))
    assert (None if arrays is None else len(arrays)) == count
    if arrays is not None:
        assert len(arrays) <= LIMIT_ARRAYS
        validator = jsonschema.Draft202012Validator({**root, **whole})
        assert all(map(validator.is_valid, arrays))
        values = schema["items"].get("enum", ["a", True, False, None, "red", "green"])
        tried = [[*one] for size in range(5) for one in itertools.permutations(values, size)]
        valid = [array for array in tried if validator.is_valid(array)]
        assert {json.dumps(array) for array in map(rounded, valid)} <= {
            json.dumps(array) for array in map(rounded, arrays)
        }


def rounded(array: list[Any]) -> list[Any]:
    return [float(value) if type(value) in (int, float) else value for value in array]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "items": {"enum": ["a"]}, "minItems": 2, "uniqueItems": True}, "no array satisfies"),
        ({"type": "array", "items": {"enum": [*"abcde"]}, "uniqueItems": True}, "at most 65 arrays of short constants"),
        ({"uniqueItems": "yes"}, "must be true or false"),
        (
            {
                "properties": {
                    f"p{at}": {"type": "array", "items": {"enum": [*"abcd"]}, "uniqueItems": True} for at in range(16)
                }
            },
            "1000 in a schema",
        ),
    ],
)
def test_sets_that_cannot_be_enforced_are_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Grammar.json_schema(schema)


def test_sets_that_say_nothing_are_taken() -> None:
    for schema in ({"uniqueItems": False}, {"type": "array", "maxItems": 1, "uniqueItems": True}):
        Grammar.json_schema(schema)
    data = {"const": {"uniqueItems": True}}
    assert lenient_schema(data, "s") == (data, ())
    named = {"properties": {"const": {"type": "array", "uniqueItems": True}}}
    assert lenient_schema(named, "s")[1] == ("s.properties.const.uniqueItems=true",)
