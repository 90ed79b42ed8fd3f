"""Bounds on what a JSON schema asks of llguidance, which are checked before it compiles the schema.

Its own limits hold for steps while a text is written. They do not bound the compilation, which cannot be interrupted, and
takes seconds, or does not end, where parts of a schema are combined with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from edgedec.errors import UsageError
from edgedec.runtime.grammar.required_length import LIMIT_REQUIRED, check_required, regex_length

__all__ = ["check_optional", "check_work"]

LIMIT_OPTIONAL = 1_000  # optional properties of an object, with those of the schemas that apply to the same value
LIMIT_ALL_OPTIONAL = 2_000  # optional properties of all objects: the time grows with the square of the names
LIMIT_PATTERN_PROPERTIES = 64  # patterns of names for an object: each two of them are compared
LIMIT_PATTERNS = 8  # patterns and formats that one string must have: the time may double with each

Place = tuple[str, ...]


@dataclass
class _Sums:
    """The sums over a schema and the schemas that apply to the same value.

    Members:
        optional: optional properties.
        names: patterns of ``patternProperties``.
        patterns: patterns and formats that one string must have at most.
    """

    optional: int
    names: int
    patterns: int


def check_work(
    places: Mapping[Place, Any], in_place: Callable[[Place], Sequence[Place]], show: Callable[[Place], str]
) -> int:
    """Check the size of what llguidance combines.

    Args:
        places: the schema at each place. None applies to the same value as itself.
        in_place: returns the places of the schemas that apply to the same value as that of a place.
        show: returns a place as a text.

    Returns:
        The number of optional properties of all objects.

    Raises:
        UsageError: a limit is exceeded; the message has the place, the number, the limit, and what helps.
    """
    own = {place: _own(schema) for place, schema in places.items()}
    count = sum(one.optional for one in own.values())
    check_optional(count, "the JSON schema has")
    for place, have in _sums(own, in_place).items():
        if (
            max(have.optional - LIMIT_OPTIONAL, have.names - LIMIT_PATTERN_PROPERTIES, have.patterns - LIMIT_PATTERNS)
            > 0
        ):
            _refuse(have, f"the JSON schema at {show(place)}, with the schemas that apply to the same value,")
        if (longest := _longest(places[place])) > LIMIT_REQUIRED:
            check_required(longest, f"the JSON schema at {show(place)}")
    return count


def _refuse(have: _Sums, where: str) -> NoReturn:
    if have.optional > LIMIT_OPTIONAL:
        raise UsageError(
            f"{where} has {have.optional:,} optional properties; at most {LIMIT_OPTIONAL:,} are supported, so name some "
            "in 'required', or leave some out"
        )
    if have.names > LIMIT_PATTERN_PROPERTIES:
        raise UsageError(
            f"{where} has {have.names:,} names in 'patternProperties'; at most {LIMIT_PATTERN_PROPERTIES} are "
            "supported, so join some of them"
        )
    raise UsageError(
        f"{where} has {have.patterns} patterns and formats for one string; at most {LIMIT_PATTERNS} are supported, so join "
        "some of them"
    )


def check_optional(count: int, has: str) -> None:
    """Check the number of optional properties of all objects in schemas that are compiled together.

    Raises:
        UsageError: there are too many; the message begins with ``has``.
    """
    if count > LIMIT_ALL_OPTIONAL:
        raise UsageError(
            f"{has} {count:,} optional properties in all objects; at most {LIMIT_ALL_OPTIONAL:,} are supported, so name "
            "some in 'required', or leave some out"
        )


def _sums(own: Mapping[Place, _Sums], in_place: Callable[[Place], Sequence[Place]]) -> dict[Place, _Sums]:
    sums: dict[Place, _Sums] = {}
    for start in own:
        pending = [start]
        while pending:
            place = pending[-1]
            inner = in_place(place) if place not in sums else ()
            if missing := [one for one in inner if one not in sums]:
                pending += missing
                continue
            pending.pop()
            if place not in sums:
                sums[place] = _joined(place, own[place], {one: sums[one] for one in inner}) if inner else own[place]
    return sums


def _joined(place: Place, own: _Sums, inner: Mapping[Place, _Sums]) -> _Sums:
    """Return the sums of a schema. A string must have the patterns of one of the alternatives of ``anyOf`` or ``oneOf``."""
    depth = len(place)
    choices = {"anyOf": 0, "oneOf": 0}
    for one, have in inner.items():
        own.optional += have.optional
        own.names += have.names
        keyword = one[depth] if one[:depth] == place and len(one) == depth + 2 else ""
        if keyword in choices:
            choices[keyword] = max(choices[keyword], have.patterns)
        else:
            own.patterns += have.patterns
    own.patterns += sum(choices.values())
    return own


def _own(schema: Any) -> _Sums:
    if not isinstance(schema, dict):
        return _Sums(0, 0, 0)
    required = set(schema.get("required", ()))
    return _Sums(
        optional=sum(name not in required for name in schema.get("properties", ())),
        names=len(schema.get("patternProperties", ())),
        patterns=("pattern" in schema) + ("format" in schema),
    )


def _longest(schema: Any) -> int:
    """Return the characters of the longest text that a value of a schema must have, at most."""
    if not isinstance(schema, dict):
        return 0
    names = [schema.get("pattern", ""), *schema.get("patternProperties", ())]
    longest, pending = (
        max(map(regex_length, names)),
        [schema.get("const"), schema.get("enum"), [*schema.get("properties", ())]],
    )
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            longest = max(longest, len(value))
        elif isinstance(value, dict):
            pending += [*value, *value.values()]
        elif isinstance(value, list):
            pending += value
    return longest
