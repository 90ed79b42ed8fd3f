"""The keywords of JSON schemas by their kinds, and what the value of each must be. ``schema.py`` enforces them.

Source: JSON Schema draft 2020-12, core and validation; the keywords are those that llguidance implements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

__all__ = [
    "ANNOTATIONS",
    "CHECKS",
    "COUNTS",
    "DEFINITIONS",
    "FORMATS",
    "KEYWORDS",
    "LISTS",
    "MAPS",
    "NUMBERS",
    "SCHEMAS",
    "TYPES",
    "VERSIONS",
]

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
# Values of ``$schema``: the versions in which all enforced keywords have the same meaning.
VERSIONS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
)
# Keywords that constrain nothing; they are left out.
ANNOTATIONS = (
    "title",
    "description",
    "default",
    "examples",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$anchor",
    "discriminator",  # OpenAPI's; it helps to find the schema of a oneOf, and excludes no value
)
DEFINITIONS = ("$defs", "definitions")
COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
MAPS = ("properties", "patternProperties")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SCHEMAS = ("items", "additionalItems", "additionalProperties")
VALUES = ("type", "enum", "const", "required", "pattern", "format", "uniqueItems")
KEYWORDS = tuple(sorted((*COUNTS, *NUMBERS, *MAPS, *LISTS, *SCHEMAS, *VALUES, *DEFINITIONS, "$ref")))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(name in TYPES for name in names) and len(set(cast(list[str], names))) == len(names)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value) and len(set(value)) == len(value)


# keyword -> what its value must be, and the test of it
CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(COUNTS, ("a whole number that is not negative", _is_count)),
    **dict.fromkeys(NUMBERS, ("a number", _is_number)),
    "multipleOf": ("a number above 0", lambda value: _is_number(value) and value > 0),
    "type": (f"one or several of {', '.join(TYPES)}", _is_type),
    "enum": ("a list with at least one value", lambda value: isinstance(value, list) and bool(value)),
    "const": ("a value", lambda value: True),
    "required": ("a list of different names", _are_names),
    "uniqueItems": ("true or false", lambda value: isinstance(value, bool)),
    "pattern": ("a regular expression", lambda value: isinstance(value, str)),
    "format": (f"one of {', '.join(FORMATS)}", lambda value: value in FORMATS),
}
