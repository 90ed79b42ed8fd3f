"""JSON schemas as programs write them, in the dialect that a grammar can enforce.

The schemas of tools come from other programs: they have OpenAPI's keywords, annotations of editors, and keywords that no
grammar can follow. What means something is said in other words here (``nullable``); what means nothing, and what cannot be
enforced, is left out and named. An answer is then less constrained, and never one that the schema would have excluded for
another reason. ``Schema`` checks the result, so what is wrong in a schema is still refused.

Source: JSON Schema drafts 4 to 2020-12; OpenAPI 3.0, "Schema Object"; Gemini's ``Schema``, whose types are in upper case.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from edgedec.errors import UsageError
from edgedec.runtime.grammar._library import Work
from edgedec.runtime.grammar.grammar import blamed_keyword
from edgedec.runtime.grammar.json_text import EXACT_INTEGERS, Place, reference_place
from edgedec.runtime.grammar.schema_keywords import (
    ANNOTATIONS,
    COUNTS,
    DEFINITIONS,
    FORMATS,
    KEYWORDS,
    LISTS,
    MAPS,
    NUMBERS,
    SCHEMAS,
    TYPES,
    VERSIONS,
)
from edgedec.runtime.grammar.values import LIMIT_ALL_ARRAYS, unique_arrays

__all__ = ["lenient_schema"]

# Spellings of types in other dialects, in lower case
_TYPES = {
    **{name: name for name in TYPES},
    **{"int": "integer", "long": "integer", "float": "number", "double": "number", "decimal": "number"},
    **{"str": "string", "text": "string", "bool": "boolean", "dict": "object", "map": "object", "list": "array"},
}
_REPAIRS = 32  # keywords of a schema that llguidance refuses and that are left out one after the other
_SHOWN = 40  # characters of a value in a name

Notes = dict[str, None]


def lenient_schema(schema: Mapping[str, Any], where: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a schema that a grammar can enforce, and the names of what it leaves out.

    Parameters:
        schema: the schema, as ``json.loads`` returns it.
        where: the place of the schema, with which names begin (``tools[0].function.parameters``).

    Returns:
        The schema, and names such as ``tools[0].function.parameters.properties.n.format=int32``.

    Raises:
        UsageError: the schema is wrong, or cannot be enforced for a reason that leaving a keyword out does not mend.
    """
    notes: Notes = {}
    try:
        translated = _translated(schema, where, notes)
        result = translated if isinstance(translated, dict) else {"anyOf": [translated]}
    except RecursionError as error:
        raise UsageError("the JSON schema is nested too deeply; make it flatter") from error
    _drop_lost_references(result, result, where, notes)
    work = Work()
    _drop_unique(result, result, where, notes, [LIMIT_ALL_ARRAYS])
    for _ in range(_REPAIRS):
        found = blamed_keyword(result, work)
        if found is None:
            break
        place, keyword = found
        part = _at(result, place)
        notes[".".join([where, *place, keyword])] = None
        value = part.pop(keyword)
        if keyword == "oneOf":
            part.setdefault("anyOf", value)  # the exclusion is left out
    return result, tuple(notes)


def _translated(schema: Any, where: str, notes: Notes) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    if schema.get("not", False) in ({}, True):
        return False  # zod writes so what may not be there
    result: dict[str, Any] = {}
    for keyword, value in schema.items():
        here = f"{where}.{keyword}"
        if value is None and keyword not in ("const", "default"):
            continue  # a program that writes out all members of its own type
        if keyword in ANNOTATIONS or (keyword == "$schema" and str(value).rstrip("#") in VERSIONS):
            continue  # known to mean nothing, and in nearly every schema
        if keyword == "nullable" or (keyword == "uniqueItems" and not value):
            continue
        if keyword not in KEYWORDS or not _is_enforced(keyword, value):
            notes[f"{here}={_shown(value)}" if isinstance(value, str | int | float) else here] = None
        elif keyword in MAPS or keyword in DEFINITIONS:
            parts = value.items() if isinstance(value, Mapping) else ()
            result[keyword] = {name: _translated(one, f"{here}.{name}", notes) for name, one in parts} or value
        elif (keyword in LISTS or keyword == "items") and isinstance(value, list):
            result[keyword] = [_translated(one, f"{here}.{at}", notes) for at, one in enumerate(value)]
        elif keyword in SCHEMAS:
            result[keyword] = _translated(value, here, notes)
        else:
            result[keyword] = _said_otherwise(keyword, value)
    _exclusive(schema, result)
    required, properties = result.get("required", ()), result.get("properties")
    if required and properties is None and result.get("type") == "object":
        properties = result["properties"] = {}
    if isinstance(properties, dict) and all(isinstance(one, str) for one in required):
        for name in required:
            properties.setdefault(name, {})  # any value, and no further properties beside the named ones
    least = result.get("minProperties")
    if isinstance(least, int) and least > len(required) + 1:
        notes[f"{where}.minProperties={result.pop('minProperties')}"] = None
    return _with_null(result) if schema.get("nullable") is True else result


def _drop_lost_references(part: Any, root: Any, where: str, notes: Notes) -> None:
    """Leave out references to other documents, and to places that are not there."""
    if isinstance(part, dict) and isinstance(reference := part.get("$ref"), str):
        try:
            _at(root, reference_place(reference))
        except (UsageError, LookupError, TypeError, ValueError):
            notes[f"{where}.$ref={_shown(part.pop('$ref'))}"] = None
    parts = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for name, one in parts:
        _drop_lost_references(one, root, f"{where}.{name}", notes)


def _drop_unique(part: Any, root: Any, where: str, notes: Notes, left: list[int]) -> None:
    """Leave out ``uniqueItems`` where a grammar cannot enforce it, or where it says nothing.

    ``left`` has the number of arrays that may still be listed. Parts that are no schemas stay, and are refused later.
    """

    def resolve(reference: str) -> Any:
        return _at(root, reference_place(reference))

    if isinstance(part, dict) and part.get("uniqueItems") is True:
        try:
            count = 1 if part.get("maxItems") in (0, 1) else len(unique_arrays(part, resolve) or ())
        except (UsageError, LookupError, TypeError, ValueError, AttributeError):
            count = 1
        if not count or count > left[0]:
            notes[f"{where}.uniqueItems=true"] = None
            del part["uniqueItems"]
        left[0] -= count if "uniqueItems" in part else 0
    for name, one in _schemas_in(part):
        _drop_unique(one, root, f"{where}.{name}", notes, left)


def _schemas_in(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the schemas in the keywords of one, with their places; data such as that of ``const`` is none."""
    for keyword, value in schema.items() if isinstance(schema, dict) else ():
        if keyword in (*MAPS, *DEFINITIONS) and isinstance(value, dict):
            yield from ((f"{keyword}.{name}", one) for name, one in value.items())
        elif keyword in (*LISTS, "items") and isinstance(value, list):
            yield from ((f"{keyword}.{at}", one) for at, one in enumerate(value))
        elif keyword in SCHEMAS:
            yield keyword, value


def _is_enforced(keyword: str, value: Any) -> bool:
    """Return False for a value of a keyword that other dialects have, and that constrains in ways unknown here."""
    if keyword == "format":
        return value in FORMATS
    if keyword == "uniqueItems":
        return isinstance(value, bool)
    if keyword == "required":
        return isinstance(value, list)  # true in draft 3
    if keyword in NUMBERS:
        return isinstance(value, bool) or not isinstance(value, int | float) or abs(value) <= EXACT_INTEGERS
    if keyword == "enum":
        return bool(value != [])
    if keyword == "type":
        names = value if isinstance(value, list) else [value]
        return not all(isinstance(one, str) for one in names) or {one.lower() for one in names} <= _TYPES.keys()
    return True


def _said_otherwise(keyword: str, value: Any) -> Any:
    """Return a value in the spelling of JSON Schema 2020-12."""
    if keyword == "type":
        if isinstance(value, list):
            return [*dict.fromkeys(_TYPES.get(str(one).lower(), one) for one in value)]
        return _TYPES.get(str(value).lower(), value)
    if keyword == "required" and all(isinstance(one, str) for one in value):
        return [*dict.fromkeys(value)]
    return int(value) if keyword in COUNTS and isinstance(value, float) and value.is_integer() else value


def _exclusive(schema: Mapping[str, Any], result: dict[str, Any]) -> None:
    """Say draft 4's and OpenAPI's ``exclusiveMinimum: true`` with the number of the minimum."""
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(exclusive), bool):
            del result[exclusive]
            if schema[exclusive] and bound in result:
                result[exclusive] = result.pop(bound)


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that allows null as well, as OpenAPI's ``nullable: true`` means."""
    if not isinstance(schema.get("type"), str | list) or "const" in schema or {"$ref", *LISTS} & set(schema):
        return {"anyOf": [schema, {"type": "null"}]} if schema else schema
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    result = schema | {"type": [*names, "null"] if "null" not in names else names}
    if isinstance(values := schema.get("enum"), list) and None not in values:
        result["enum"] = [*values, None]
    return result


def _at(schema: Any, place: Place) -> Any:
    for part in place:
        schema = schema[int(part)] if isinstance(schema, list) else schema[part]
    return schema


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
