"""Schemas that cannot be enforced are refused with the keyword and its place, and texts of the others are valid."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any

import jsonschema
import pytest

from edgedec.errors import UsageError
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.json_text import LIMIT_CHARACTERS
from edgedec.runtime.grammar.schema import Schema
from tests.runtime.grammar.support.random_writer import compiler, demo_tokenizer, random_text

LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
ENDLESS = {
    "$ref": "#/$defs/a",
    "$defs": {"a": {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}},
}

REFUSED = {
    # llguidance by itself ignores each of the first five without a word.
    "a misspelt keyword": (
        {"type": "object", "propertees": {}},
        r"'propertees' at #/propertees.*did you mean 'properties'",
    ),
    "an unknown keyword alone": ({"minimun": 3}, r"'minimun' at #/minimun"),
    "an extension": ({"type": "string", "x-order": 1}, r"'x-order' at #/x-order"),
    "a switch of llguidance": ({"type": "array", "x-guidance": {"lenient": True}}, r"'x-guidance' at #/x-guidance"),
    "an old version": ({"$schema": "http://json-schema.org/draft-04/schema#", "const": 3}, r"'\$schema' at #/\$schema"),
    "not": ({"properties": {"a": {"not": {}}}}, r"'not' at #/properties/a/not"),
    "uniqueItems": ({"items": {"uniqueItems": True}}, r"'uniqueItems' at #/items/uniqueItems"),
    "if": ({"anyOf": [{}, {"if": {}}]}, r"'if' at #/anyOf/1/if"),
    "in a definition": ({"$defs": {"a": {"contains": {}}}}, r"'contains' at #/\$defs/a/contains"),
    "an escaped place": ({"properties": {"a/b~c": {"typ": 1}}}, r"'typ' at #/properties/a~1b~0c/typ"),
    "an unknown type": ({"type": "int"}, r"'type' at #/type must be one or several of"),
    "a wrong value": ({"prefixItems": [{"minimum": "3"}]}, r"'minimum' at #/prefixItems/0/minimum must be a number"),
    "a boolean bound": ({"minimum": 1, "exclusiveMinimum": True}, r"'exclusiveMinimum' at #/exclusiveMinimum"),
    "a negative count": ({"minItems": -1}, r"'minItems' at #/minItems"),
    "no schema": ({"properties": {"a": 3}}, r"at #/properties/a must be an object or a boolean, not 3"),
    "an unknown format": ({"format": "credit-card"}, r"'format' at #/format must be one of date, "),
    "an empty choice": ({"anyOf": []}, r"'anyOf' at #/anyOf"),
    "a name twice": ({"required": ["a", "a"]}, r"'required' at #/required"),
    "a nested id": ({"items": {"$id": "x"}}, r"'\$id' at #/items/\$id"),
    "another document": ({"$ref": "https://example.com/s"}, r"'\$ref' at #/\$ref"),
    "an anchor": ({"$ref": "#name"}, r"'\$ref' at #/\$ref to '#name'"),
    "a lost reference": ({"items": {"$ref": "#/$defs/a"}}, r"'\$ref' at #/items/\$ref to #/\$defs/a"),
    "a reference to a value": ({"$ref": "#/const", "const": {}}, r"'\$ref' at #/\$ref to #/const"),
    "a reference to itself": ({"$ref": "#"}, r"at # refers to itself"),
    "a loop": (LOOP, r"at #/\$defs/a refers to itself"),
    "a loop through a choice": ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, r"at # refers to itself"),
    "an endless object": (ENDLESS, r"at # requires itself"),
    "an endless list": ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, r"at # requires itself"),
    "items without effect": ({"additionalItems": False}, r"'additionalItems' at #/additionalItems"),
    "two prefixes": ({"prefixItems": [{}], "items": [{}]}, r"'items' at #/items"),
    "several unnamed properties": ({"minProperties": 2}, r"'minProperties' at #/minProperties"),
    "a huge integer": ({"enum": [1, 10**20]}, r"at #/enum/1; integers from"),
    "a number that overflows": ('{"minimum": 1e999}', r"at #/minimum that is not finite"),
    "a key twice": ('{"type": "null", "type": "string"}', r"the key 'type' twice"),
    "no JSON": ("{", r"not JSON"),
    "no value": (False, r"no value satisfies"),
    # Found by llguidance; the keyword and the place are found here.
    "look-ahead": ({"properties": {"a": {"pattern": "(?=x)"}, "b": {}}}, r"'pattern' at #/properties/a/pattern: regex"),
    "a back reference": ({"items": {"pattern": r"(a)\1"}}, r"'pattern' at #/items/pattern"),
    "overlapping oneOf": ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, r"'oneOf' at #/oneOf"),
    "overlapping patterns": (
        {"items": {"type": "object", "patternProperties": {"^a": {}, "^ab": {}}}},
        r"'patternProperties' at #/items/patternProperties",
    ),
    "an empty range": (
        {"items": {"type": "integer", "minimum": 5, "maximum": 2}, "minItems": 1, "type": "array"},
        "#/items",
    ),
}


@pytest.mark.thorough(sample=15)
@pytest.mark.parametrize(("schema", "message"), REFUSED.values(), ids=REFUSED)
def test_a_schema_that_cannot_be_enforced_is_refused_by_name_and_place(schema: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Grammar.json_schema(schema if isinstance(schema, str) else json.dumps(schema))


def chain(count: int) -> dict[str, Any]:
    """Return a schema of ``count`` definitions, each of which refers to the next one."""
    links = {f"d{at}": {"properties": {"x": {"$ref": f"#/$defs/d{at + 1}"}}} for at in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{count}": {"type": "integer"}}}


def nested(levels: int) -> str:
    return '{"items":' * levels + "{}" + "}" * levels


HOSTILE = {
    # llguidance overflows the stack at a chain of 1,600, which ends the process.
    "a long chain of references": (json.dumps(chain(4_000)), "levels of schemas"),
    "deep nesting": (nested(150), "nested too deeply"),
    "very deep nesting": (nested(20_000), "nested too deeply"),
    "many values": (json.dumps({"enum": [*range(30_000)]}), "more than 20,000 values"),
    "many characters": (json.dumps({"const": "x" * LIMIT_CHARACTERS}), "characters"),
}


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(("text", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_schema_that_is_too_large_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Grammar.json_schema(text)


def test_a_schema_at_the_limit_of_levels_is_compiled() -> None:
    assert Grammar.json_schema(json.dumps(chain(298))).program


NUMBERS = [
    {"type": "integer", "minimum": -7, "maximum": 13},
    {"type": "integer", "exclusiveMinimum": 5, "multipleOf": 3, "maximum": 100},
    {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2.25},
    {"type": "number", "multipleOf": 0.1, "minimum": 0, "maximum": 3},
    {"type": "integer", "minimum": 1.5},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 6}]},
]
STRINGS = [
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "string", "minLength": 3, "pattern": "^a*b*$"},
    {"type": "string", "pattern": "^a$|^b[^x]$"},
    {"type": "string", "pattern": "(^a)b"},
    {"type": "string", "pattern": r"^\d{3}-\d{4}$"},
    {"type": "string", "pattern": "^[^a-z]*$"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "uuid"},
]
VALUES = [
    {"const": 'é\n"x\\'},
    {"const": {"b": 1.5, "a": [1, None, True]}},
    {"enum": [1, "a", None, {"x": 1}]},
    {"enum": [3, 4.5, "z"], "type": "number"},
    {"const": 1e-7},
    {"const": 123456789012},
    {"type": ["boolean", "null"]},
    {"anyOf": [{"type": "integer", "maximum": 3}, {"type": "string", "maxLength": 2}]},
    {"oneOf": [{"type": "boolean"}, {"type": "array", "maxItems": 1}]},
    {"minimum": 5, "maxLength": 2, "maxItems": 1, "maxProperties": 1},
]
ARRAYS = [
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": False},
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "null"}, "minItems": 3, "maxItems": 5},
    {"type": "array", "maxItems": 0},
]
OBJECTS = [
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"maxLength": 3, "type": "string"}},
        "required": ["b"],
    },
    {"type": "object", "required": ["z"], "additionalProperties": {"type": "null"}},
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2},
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": {"type": "null"}},
    {"type": "object", "properties": {"xa": {"minimum": 5}}, "patternProperties": {"^x": {"type": "integer"}}},
    {"type": "object", "properties": {"a\nb": {"type": "null"}, '"é': {"const": 1}}, "required": ["a\nb", '"é']},
    {"type": "object", "properties": {"a": False, "b": {"type": "integer"}}},
    {
        "type": "object",
        "properties": {"v": {"type": "boolean"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["v", "next"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "allOf": [
            {"properties": {"a": {"type": "integer"}}},
            {"properties": {"a": {"minimum": 3}, "b": {"type": "null"}}, "required": ["a"]},
        ],
    },
    {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": "a"}, "v": {"type": "integer"}}, "required": ["k", "v"]},
            {"type": "object", "properties": {"k": {"const": "b"}, "w": {"type": "null"}}, "required": ["k", "w"]},
        ]
    },
    {"$defs": {"n": {"type": "integer", "minimum": 2}}, "items": {"$ref": "#/$defs/n", "maximum": 9}, "type": "array"},
    {
        "properties": {"a/b": {"type": "boolean"}, "c": {"$ref": "#/properties/a~1b"}},
        "required": ["c"],
        "type": "object",
    },
    {"definitions": {"a b": {"enum": ["x"]}}, "type": "array", "items": {"$ref": "#/definitions/a%20b"}, "minItems": 1},
]


def decimal(text: str) -> Decimal:
    """Return the value of a number, an infinity if its exponent has too many digits."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("inf")


@pytest.mark.thorough(sample=12)
@pytest.mark.parametrize("schema", [*NUMBERS, *STRINGS, *VALUES, *ARRAYS, *OBJECTS], ids=json.dumps)
def test_every_text_that_ends_is_valid(schema: dict[str, Any]) -> None:
    """The validator computes with decimals, because 0.3 is no multiple of 0.1 in binary."""
    grammar = Grammar.json_schema(schema)
    validator = jsonschema.Draft202012Validator(json.loads(json.dumps(schema), parse_float=decimal))
    texts = [text for seed in range(10) if (text := random_text(grammar, seed)) is not None]
    assert len(texts) >= 3
    for text in texts:
        validator.validate(json.loads(text, parse_float=decimal))


def test_lists_of_items_are_the_prefix_as_in_older_drafts() -> None:
    schema = {
        "type": "array",
        "items": [{"const": 1}],
        "additionalItems": {"type": "null"},
        "minItems": 2,
        "maxItems": 2,
    }
    grammar = Grammar.json_schema({"$schema": "http://json-schema.org/draft-07/schema#", **schema})
    assert {str(json.loads(random_text(grammar, seed) or b"0")) for seed in range(8)} == {"[1, None]"}


def test_annotations_constrain_nothing_and_are_left_out() -> None:
    notes = {"title": "t", "description": "d", "default": 3, "examples": [{}], "$comment": "c", "deprecated": True}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/s"}
    assert json.loads(Schema({**head, "type": "array", "items": {"type": "null", **notes}}).text()) == {
        "type": "array",
        "items": {"type": "null"},
    }
    assert json.loads(Schema(notes).text()) == {}


def test_a_text_of_a_pretty_printer_follows_the_grammar_and_endless_blanks_do_not() -> None:
    grammar = Grammar.json_schema({"type": "object"})

    def follows(text: str) -> bool:
        ids = demo_tokenizer().encode(text, add_special=False)
        constraint = compiler().constraint(grammar, prompt_length=0)
        for at, token in enumerate(ids):
            mask = constraint.allowed(ids[:at])
            if mask is None or not mask[token]:
                return False
        return constraint.complete(ids.tolist())

    value = {"a": [1, {"b": None}], "c": "x y"}
    assert follows(json.dumps(value))
    assert follows(json.dumps(value, indent=2))
    assert follows(json.dumps(value, separators=(",", ":")))
    assert not follows('{"a":  1}')
    assert not follows('{"a":\n\n1}')
