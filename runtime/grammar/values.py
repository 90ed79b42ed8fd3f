"""The values that JSON schemas allow, as far as constants and types tell: whether two schemas have a value in common, and
the arrays without repetition of a few constants.

Source: JSON Schema draft 2020-12, validation; derived here.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["LIMIT_ALL_ARRAYS", "LIMIT_ARRAYS", "Disjoint", "Resolve", "unique_arrays"]

LIMIT_ARRAYS = 65  # arrays without repetition that a grammar lists for one schema: those of four constants
LIMIT_ALL_ARRAYS = 1000  # the same for all schemas within one
_CHARACTERS = 256  # characters of a constant in such arrays
_WORK = 50_000  # comparisons of schemas and constants for one whole schema, at most
_DEPTH = 16  # schemas within each other that are compared
_FINITE: dict[str, list[Any]] = {"boolean": [False, True], "null": [None]}
_ITEMS_ONLY = frozenset(
    ["enum", "const", "type", "title", "description", "default", "examples", "$comment", "deprecated"]
)

Resolve = Callable[[str], Any]  # returns the schema that a ``$ref`` names; None if there is none


class Disjoint:
    """Tells whether two schemas have no value in common. The work of all calls together is limited.

    Parameters:
        resolve: returns the schema that a ``$ref`` names.
    """

    def __init__(self, resolve: Resolve) -> None:
        self._resolve, self._left = resolve, _WORK

    def all(self, schemas: Sequence[Any]) -> bool:
        """Return True if no value is one of two of the schemas. False: it may be, or it would take too long to tell."""
        return all(self(one, other) for one, other in itertools.combinations(schemas, 2))

    def __call__(self, one: Any, other: Any, depth: int = _DEPTH) -> bool:
        """Return True if two schemas have no value in common. False: they may have one, or too much work would tell."""
        self._left -= 1
        if one is False or other is False:
            return True
        if not (isinstance(one, Mapping) and isinstance(other, Mapping)) or not depth or self._left < 0:
            return False
        return (
            self._parts_exclude(one, other, depth)
            or self._parts_exclude(other, one, depth)
            or self._constants_exclude(one, other)
            or self._constants_exclude(other, one)
            or _types_exclude(one, other)
            or self._properties_exclude(one, other, depth)
        )

    def _parts_exclude(self, one: Mapping[str, Any], other: Any, depth: int) -> bool:
        """Return True if what ``one`` refers to or combines has no value of ``other``."""
        if "$ref" in one and self(self._resolve(one["$ref"]), other, depth - 1):
            return True
        for keyword in ("anyOf", "oneOf"):
            if keyword in one and all(self(part, other, depth - 1) for part in one[keyword]):
                return True
        return any(self(part, other, depth - 1) for part in one.get("allOf", ()))

    def _properties_exclude(self, one: Mapping[str, Any], other: Mapping[str, Any], depth: int) -> bool:
        """Return True if both are objects that need a property which no value fits in both."""
        if not one.get("type") == other.get("type") == "object":
            return False
        names = {*one.get("required", ())} & {*other.get("required", ())}
        return any(self(_property(one, name), _property(other, name), depth - 1) for name in sorted(names))

    def _constants_exclude(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Return True if ``one`` has constants, none of which is a constant or has a type of the other."""
        values, others, types = _constants(one), _constants(other), _types(other)
        if values is None:
            return False
        self._left -= len(values) + len(others or ())
        if others is not None and {*map(_canonical, values)}.isdisjoint(map(_canonical, others)):
            return True
        return types is not None and not any(_has_type(value, types) for value in values)


def _property(schema: Mapping[str, Any], name: str) -> Any:
    return schema.get("properties", {}).get(name, True)


def _constants(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the constants of a schema, of which its values are some; None if it has none."""
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _types_exclude(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    types, others = _types(one), _types(other)
    if types is None or others is None:
        return False
    wide = types | ({"integer"} if "number" in types else set())
    return wide.isdisjoint(others | ({"integer"} if "number" in others else set()))


def _types(schema: Mapping[str, Any]) -> set[str] | None:
    kinds = schema.get("type")
    return None if kinds is None else {kinds} if isinstance(kinds, str) else {*kinds}


def _has_type(value: Any, types: set[str]) -> bool:
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, int | float):
        return "number" in types or ("integer" in types and float(value).is_integer())
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return names[type(value)] in types


def _canonical(value: Any) -> tuple[Any, ...]:
    """Return a key that two JSON values share if they are equal, as 1 and 1.0 are, and 1 and true are not."""
    if isinstance(value, bool) or value is None:
        return ("word", str(value))
    if isinstance(value, int | float):
        return ("number", float(value))
    if isinstance(value, str):
        return ("string", value)
    if isinstance(value, list):
        return ("array", *map(_canonical, value))
    return ("object", *sorted((name, _canonical(one)) for name, one in value.items()))


def unique_arrays(schema: Mapping[str, Any], resolve: Resolve) -> list[list[Any]] | None:
    """Return the arrays without repetition that a schema with ``uniqueItems`` allows.

    None if they are more than ``LIMIT_ARRAYS``, or if their items are not short constants, or if other values than arrays
    are allowed.
    """
    items = schema.get("items")
    if isinstance(items, Mapping) and {*items} == {"$ref"}:
        items = resolve(items["$ref"])
    if (
        schema.get("type") != "array"
        or {"enum", "const", "prefixItems"} & schema.keys()
        or not isinstance(items, Mapping)
    ):
        return None
    values, types = _constants(items), _types(items)
    if values is None:
        values = _FINITE.get(str(items.get("type")))
    if values is None or not _ITEMS_ONLY.issuperset(items) or len(values) > LIMIT_ARRAYS:
        return None
    if any(len(json.dumps(value)) > _CHARACTERS for value in values):
        return None
    distinct = {_canonical(value): value for value in values if types is None or _has_type(value, types)}
    least, most = schema.get("minItems", 0), min(schema.get("maxItems", len(distinct)), len(distinct))
    sizes = range(least, most + 1)
    if sum(math.perm(len(distinct), size) for size in sizes) > LIMIT_ARRAYS:
        return None
    return [[*one] for size in sizes for one in itertools.permutations(distinct.values(), size)]
