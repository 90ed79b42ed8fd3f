"""The check that a JSON schema is one that a grammar can enforce.

llguidance ignores keywords that it does not know, and a key of a schema (``x-guidance``) switches its own checks off. So a
schema is checked here first: every keyword is enforced, or is known to constrain nothing, or is refused with its name and
its place. The result has the enforced keywords only, and every reference points to ``#/$defs``.

Source: JSON Schema draft 2020-12, core and validation; the keywords are those that llguidance implements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgedec.errors import UsageError
from edgedec.host.spelling import did_you_mean
from edgedec.runtime.grammar.json_text import Place, place_text, read_json, reference_place
from edgedec.runtime.grammar.schema_keywords import (
    ANNOTATIONS,
    CHECKS,
    DEFINITIONS,
    KEYWORDS,
    LISTS,
    MAPS,
    SCHEMAS,
    VERSIONS,
)
from edgedec.runtime.grammar.schema_work import check_work
from edgedec.runtime.grammar.values import LIMIT_ALL_ARRAYS, LIMIT_ARRAYS, Disjoint, unique_arrays

__all__ = ["Schema"]

LIMIT_LEVELS = (
    600  # levels of nested schemas, in the whole schema and in all that it refers to; llguidance recurses so deep
)


class Schema:
    """A JSON schema that was read and checked.

    Parameters:
        source: the schema, as a text or as the object that ``json.loads`` returns.

    Members:
        places: the schema at each place, the root's at ``()``.
        optional: number of optional properties of all objects.

    Raises:
        UsageError: the schema has an unknown or unsupported keyword, or one whose value is wrong; a reference leads
            nowhere, or to itself; a schema has no finite value; or the schema is too large. The message names the keyword
            and its place.
    """

    def __init__(self, source: str | Mapping[str, Any]) -> None:
        if not isinstance(source, str):
            try:
                source = json.dumps(source)
            except (TypeError, ValueError, RecursionError) as error:
                raise UsageError(f"the JSON schema is not JSON data ({error})") from error
        self._root = read_json(source, "the JSON schema")
        self.places: dict[Place, Any] = {}
        self._references: dict[Place, Place] = {}  # place of a schema -> what its $ref refers to
        # For each place the conditions under which it has a finite value. Each is a set of places, one of which must have
        # one.
        self._conditions: dict[Place, list[set[Place]]] = {}
        self._heights: dict[Place, int] = {}  # levels of schemas in the schema at a place
        self._visit(self._root, ())
        if self._root is False:
            raise UsageError("the JSON schema is false, which no value satisfies")
        self._check_references()
        self._disjoint = Disjoint(self._referred)
        self._exclusive: dict[Place, bool] = {}  # place of a oneOf -> its schemas exclude each other
        self._check_unique()
        self._check_levels()
        self._check_loops()
        self._check_finite()
        self.optional = check_work(self.places, self._in_place, place_text)

    def _visit(self, schema: Any, place: Place) -> None:
        """Check the schema at ``place`` and those in it."""
        self.places[place], self._conditions[place], self._heights[place] = schema, [], 1
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise UsageError(
                f"the JSON schema at {place_text(place)} must be an object or a boolean, not {_short(schema)}"
            )
        for keyword, value in schema.items():
            for inner in self._visit_keyword(schema, keyword, value, place):
                self._heights[place] = max(self._heights[place], 1 + self._heights[inner])
        self._check_together(schema, place)
        self._note_conditions(schema, place)

    def _visit_keyword(self, schema: Mapping[str, Any], keyword: str, value: Any, place: Place) -> list[Place]:
        """Check a keyword and the schemas in its value, and return their places."""
        here = (*place, keyword)
        inner: dict[Place, Any] = {}
        if keyword in ("$schema", "$id"):
            self._check_head(keyword, value, place)
        elif keyword in SCHEMAS and not (keyword == "items" and isinstance(value, list)):
            inner = {here: value}
        elif keyword in LISTS or keyword == "items":
            if not isinstance(value, list) or (not value and keyword in ("anyOf", "oneOf", "allOf")):
                raise _wrong(keyword, place, "a list of schemas", value)
            inner = {(*here, str(at)): one for at, one in enumerate(value)}
        elif keyword in MAPS or keyword in DEFINITIONS:
            if not isinstance(value, dict):
                raise _wrong(keyword, place, "an object of schemas", value)
            inner = {(*here, name): one for name, one in value.items()}
        elif keyword == "$ref":
            self._references[place] = _target(value, place)
        elif keyword in CHECKS:
            expected, fits = CHECKS[keyword]
            if not fits(value):
                raise _wrong(keyword, place, expected, value)
        elif keyword not in ANNOTATIONS:
            raise UsageError(
                f"the JSON schema has the keyword {keyword!r} at {place_text(here)}, which is not supported"
                f"{did_you_mean(keyword, KEYWORDS) or '; leave it out'}"
            )
        for where, one in inner.items():
            self._visit(one, where)
        return [*inner]

    def _check_head(self, keyword: str, value: Any, place: Place) -> None:
        """Check the keywords that say which schema this is. They are allowed at the root only."""
        if place:
            raise UsageError(
                f"the JSON schema has the keyword {keyword!r} at {place_text((*place, keyword))}, which is supported at "
                "the root only; leave it out"
            )
        if keyword == "$schema" and (not isinstance(value, str) or value.rstrip("#") not in VERSIONS):
            raise _wrong(keyword, place, f"one of {', '.join(VERSIONS)}", value)

    def _check_together(self, schema: Mapping[str, Any], place: Place) -> None:
        """Check the keywords of one schema against each other."""
        listed = isinstance(schema.get("items"), list)
        if "additionalItems" in schema and not listed:
            raise UsageError(
                f"the JSON schema has 'additionalItems' at {place_text((*place, 'additionalItems'))} without a list of "
                "'items', where it has no effect; write 'prefixItems' and 'items'"
            )
        if "prefixItems" in schema and listed:
            raise UsageError(
                f"the JSON schema has 'prefixItems' and a list of 'items' at {place_text((*place, 'items'))}; write the "
                "items after the prefix as one schema"
            )
        # A key of ``additionalProperties`` may be written twice, and then counts once.
        if schema.get("minProperties", 0) > len(schema.get("required", ())) + 1:
            raise UsageError(
                f"the JSON schema has 'minProperties' at {place_text((*place, 'minProperties'))} with more than one "
                "property above those in 'required', which is not supported; name them in 'required'"
            )

    def _note_conditions(self, schema: Mapping[str, Any], place: Place) -> None:
        conditions = self._conditions[place]
        if place in self._references:
            conditions.append({self._references[place]})
        conditions += [{(*place, "allOf", str(at))} for at in range(len(schema.get("allOf", ())))]
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                conditions.append({(*place, keyword, str(at)) for at in range(len(schema[keyword]))})
        if schema.get("type") == "object":
            properties = schema.get("properties", {})
            conditions += [{(*place, "properties", one)} for one in schema.get("required", ()) if one in properties]
        if schema.get("type") == "array":
            count, keyword = (
                schema.get("minItems", 0),
                "items" if isinstance(schema.get("items"), list) else "prefixItems",
            )
            first = schema.get(keyword, ())
            conditions += [{(*place, keyword, str(at))} for at in range(min(count, len(first)))]
            rest = "additionalItems" if keyword == "items" else "items"
            if count > len(first) and rest in schema:
                conditions.append({(*place, rest)})

    def _check_references(self) -> None:
        for place, target in self._references.items():
            if target not in self.places:
                raise UsageError(
                    f"the JSON schema has a '$ref' at {place_text((*place, '$ref'))} to {place_text(target)}, where there "
                    "is no schema; refer to a schema of the same document"
                )

    def _referred(self, reference: Any) -> Any:
        """Return the schema that a ``$ref`` names."""
        return self.places.get(reference_place(reference))

    def _check_unique(self) -> None:
        left = LIMIT_ALL_ARRAYS
        for place, schema in self.places.items():
            if not isinstance(schema, dict) or not _is_unique(schema):
                continue
            arrays = unique_arrays(schema, self._referred)
            left -= len(arrays or ())
            if not arrays or left < 0:
                why = "no array satisfies" if arrays == [] else "is not supported"
                where = place_text((*place, "uniqueItems"))
                raise UsageError(
                    f"the JSON schema has the keyword 'uniqueItems' at {where}, which {why}: it "
                    f"is enforced for at most {LIMIT_ARRAYS} arrays of short constants, and {LIMIT_ALL_ARRAYS} in a schema; "
                    "leave it out"
                )

    def _check_levels(self) -> None:
        """Bound the depth to which schemas can be nested through references, whichever the order of them."""
        targets = {(), *self._references.values()}
        levels = sum(self._heights[target] for target in targets)
        if levels > LIMIT_LEVELS:
            raise UsageError(
                f"the JSON schema and the {len(targets) - 1} schemas that it refers to have {levels} levels of schemas; at "
                f"most {LIMIT_LEVELS} are supported, so write some of them in place of a '$ref', or leave some out"
            )

    def _check_loops(self) -> None:
        """Refuse schemas that refer to themselves without a property or an item in between."""
        done: set[Place] = set()
        for start in self.places:
            stack: list[tuple[Place, bool]] = [(start, False)]
            open_places: set[Place] = set()
            while stack:
                place, leaving = stack.pop()
                if leaving:
                    open_places.discard(place)
                    done.add(place)
                    continue
                if place in open_places:
                    raise UsageError(
                        f"the JSON schema at {place_text(place)} refers to itself without a property or an item in "
                        "between, so that it says nothing; take the '$ref' out"
                    )
                if place in done:
                    continue
                open_places.add(place)
                stack.append((place, True))
                stack += [(one, False) for one in self._in_place(place)]

    def _in_place(self, place: Place) -> list[Place]:
        """Return the places of the schemas that apply to the same value as the one at ``place``."""
        schema = self.places[place]
        if isinstance(schema, bool):
            return []
        places = [
            (*place, keyword, str(at))
            for keyword in ("allOf", "anyOf", "oneOf")
            for at in range(len(schema.get(keyword, ())))
        ]
        return [*places, self._references[place]] if place in self._references else places

    def _check_finite(self) -> None:
        """Refuse schemas all of whose values are infinitely deep, because their texts would never end."""
        unmet = {place: len(conditions) for place, conditions in self._conditions.items()}
        users: dict[Place, list[tuple[Place, int]]] = {}  # place -> the conditions that it meets
        for place, conditions in self._conditions.items():
            for at, any_of in enumerate(conditions):
                for one in any_of:
                    users.setdefault(one, []).append((place, at))
        met: set[tuple[Place, int]] = set()
        finite: set[Place] = set()
        pending = [place for place, count in unmet.items() if not count]
        while pending:
            place = pending.pop()
            finite.add(place)
            for condition in users.get(place, ()):
                if condition not in met:
                    met.add(condition)
                    unmet[condition[0]] -= 1
                    if not unmet[condition[0]]:
                        pending.append(condition[0])
        endless = [place for place in self.places if place not in finite]
        if endless:
            raise UsageError(
                f"the JSON schema at {place_text(min(endless, key=len))} requires itself within itself, so that no text of "
                "it ends; make a property optional"
            )

    def text(self, place: Place = ()) -> str:
        """Return the enforced keywords of the schema at ``place`` as a JSON text, with the definitions that it needs."""
        names: dict[Place, str] = {}
        schema = self._enforced(place, names)
        definitions: dict[str, Any] = {}
        while len(definitions) < len(names):
            for target, name in [*names.items()][len(definitions) :]:
                definitions[name] = self._enforced(target, names)
        if isinstance(schema, bool):
            schema = {} if schema else {"anyOf": [False]}
        return json.dumps({**schema, "$defs": definitions} if definitions else schema)

    def without(self, place: Place, keyword: str) -> str:
        """Return ``text`` of the schema at ``place`` as if it did not have ``keyword``."""
        whole = self.places[place]
        self.places[place] = {key: value for key, value in whole.items() if key != keyword}
        try:
            return self.text(place)
        finally:
            self.places[place] = whole

    def _enforced(self, place: Place, names: dict[Place, str]) -> Any:
        schema = self.places[place]
        if isinstance(schema, bool):
            return schema
        result: dict[str, Any] = {}
        if _is_unique(schema):
            listed = {"items", "minItems", "maxItems"}
            result["enum"] = unique_arrays(schema, self._referred)
            schema = {keyword: value for keyword, value in schema.items() if keyword not in listed}
        for keyword, value in schema.items():
            here = (*place, keyword)
            if keyword == "$ref":
                name = names.setdefault(self._references[place], f"s{len(names)}")
                result[keyword] = f"#/$defs/{name}"
            elif keyword in MAPS:
                result[keyword] = {name: self._enforced((*here, name), names) for name in value}
            elif isinstance(value, list) and (keyword in LISTS or keyword == "items"):
                said = "anyOf" if keyword == "oneOf" and "anyOf" not in schema and self._excludes(here) else keyword
                result[said] = [self._enforced((*here, str(at)), names) for at in range(len(value))]
            elif keyword in SCHEMAS:
                result[keyword] = self._enforced(here, names)
            elif keyword in CHECKS and keyword != "uniqueItems":
                result[keyword] = value
        return result

    def _excludes(self, place: Place) -> bool:
        """Return True if the schemas of a oneOf exclude each other, so that it is an anyOf, which llguidance knows."""
        if place not in self._exclusive:
            self._exclusive[place] = self._disjoint.all(self.places[place[:-1]]["oneOf"])
        return self._exclusive[place]


def _target(reference: Any, place: Place) -> Place:
    """Return the place that a ``$ref`` refers to."""
    if not isinstance(reference, str):
        raise _wrong("$ref", place, "a text", reference)
    try:
        return reference_place(reference)
    except UsageError as error:
        raise UsageError(f"the JSON schema has a '$ref' at {place_text((*place, '$ref'))} {error}") from None


def _wrong(keyword: str, place: Place, expected: str, value: Any) -> UsageError:
    return UsageError(
        f"the JSON schema's keyword {keyword!r} at {place_text((*place, keyword))} must be {expected}, not {_short(value)}"
    )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_unique(schema: Mapping[str, Any]) -> bool:
    """Return True if ``uniqueItems`` of a schema excludes an array."""
    return schema.get("uniqueItems") is True and schema.get("maxItems", 2) > 1
