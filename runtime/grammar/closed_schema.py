"""JSON schemas of objects that have their named properties only.

A schema without ``additionalProperties`` allows further properties. A small model that may write them often does not stop.
The arguments of tools are therefore closed: an object that names its properties has no others, unless its schema asks for
them. Each value of the closed schema is one of the original schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["closed_schema"]

_MAPS = ("properties", "patternProperties", "$defs", "definitions")  # keyword -> object of schemas
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")  # keyword -> list of schemas; items in older versions
_SCHEMAS = ("items", "additionalItems", "additionalProperties")
_OBJECTS = ("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties")
_PLACES = (*_MAPS, *_LISTS, *_SCHEMAS)
_EXPLICIT = ("additionalProperties", "patternProperties")


def closed_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema whose objects have no properties beyond the named ones.

    An object stays open if its schema says something about further properties (``additionalProperties``,
    ``patternProperties``), or requires some. A schema in which several schemas apply to one object (``allOf``, or ``$ref``,
    ``anyOf`` or ``oneOf`` beside keywords of objects) is returned as it is, because each of them may name properties.
    """
    return schema if any(map(_combines, _schemas(schema))) else _closed(schema)


def _schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and all schemas within it."""
    if not isinstance(schema, Mapping):  # true and false are schemas, too; anything else is refused elsewhere
        return
    yield schema
    for keyword in _PLACES:
        part = schema.get(keyword)
        if isinstance(part, list):
            parts = part
        else:
            parts = list(part.values()) if keyword in _MAPS and isinstance(part, Mapping) else [part]
        for one in parts:
            yield from _schemas(one)


def _combines(schema: Mapping[str, Any]) -> bool:
    several = [keyword for keyword in ("$ref", "anyOf", "oneOf") if keyword in schema]
    return "allOf" in schema or len(several) > 1 or (bool(several) and any(keyword in schema for keyword in _OBJECTS))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    result = dict(schema)
    for keyword in _PLACES:
        part = schema.get(keyword)
        if isinstance(part, list):
            result[keyword] = [_closed(one) for one in part]
        elif keyword in _MAPS and isinstance(part, Mapping):
            result[keyword] = {name: _closed(one) for name, one in part.items()}
        elif keyword in schema:
            result[keyword] = _closed(part)
    if _may_close(schema):
        result["additionalProperties"] = False
    return result


def _may_close(schema: Mapping[str, Any]) -> bool:
    properties, required = schema.get("properties"), schema.get("required", [])
    least = schema.get("minProperties", 0)
    return (
        isinstance(properties, Mapping)
        and not any(keyword in schema for keyword in _EXPLICIT)
        and isinstance(required, list)
        and all(name in properties for name in required if isinstance(name, str))
        and isinstance(least, int | float)
        and least <= len(properties)
    )
