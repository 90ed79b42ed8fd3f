"""JSON texts: how one is read within bounds, and the places in one.

Source: JSON, RFC 8259; JSON pointers, RFC 6901.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any
from urllib.parse import unquote

from edgedec.errors import UsageError

__all__ = ["EXACT_INTEGERS", "LIMIT_CHARACTERS", "Place", "place_text", "read_json", "reference_place"]

LIMIT_CHARACTERS = 1 << 18  # characters of a text
LIMIT_DEPTH = 96  # levels of lists and objects
LIMIT_VALUES = 20_000  # values, nested ones included
EXACT_INTEGERS = 1 << 53  # integers up to this one are exact in float64, which llguidance computes with

Place = tuple[str, ...]  # keys and indices from the root down, as in a JSON pointer


def place_text(place: Place) -> str:
    """Return a place as a JSON pointer in a URI fragment: ``#/properties/name``."""
    return "#" + "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in place)


def read_json(text: str, what: str) -> Any:
    """Return the value of a JSON text.

    Args:
        text: the JSON text.
        what: name of the text in messages.

    Raises:
        UsageError: the text is not JSON, names a key of an object twice, or is too large or too deep.
    """
    if len(text) > LIMIT_CHARACTERS:
        raise UsageError(f"{what} has {len(text):,} characters; at most {LIMIT_CHARACTERS:,} are supported")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) < len(items):
            counts = Counter(key for key, _ in items)
            twice = next(key for key in result if counts[key] > 1)
            raise UsageError(f"{what} has an object with the key {twice!r} twice; leave one of them out")
        return result

    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except ValueError as error:
        raise UsageError(f"{what} is not JSON: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{what} is nested too deeply; at most {LIMIT_DEPTH} levels are supported") from error
    _check_values(value, what)
    return value


def _check_values(root: Any, what: str) -> None:
    """Check the size of a JSON value, and that all of its numbers can be compared exactly."""
    pending: list[tuple[Any, Place]] = [(root, ())]
    count = 0
    while pending:
        value, place = pending.pop()
        count += 1
        if count > LIMIT_VALUES:
            raise UsageError(f"{what} has more than {LIMIT_VALUES:,} values; make it smaller")
        if len(place) > LIMIT_DEPTH:
            raise UsageError(f"{what} is nested too deeply; at most {LIMIT_DEPTH} levels are supported")
        if isinstance(value, dict):
            pending += [(one, (*place, key)) for key, one in value.items()]
        elif isinstance(value, list):
            pending += [(one, (*place, str(at))) for at, one in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{what} has a number at {place_text(place)} that is not finite; write a smaller one")
        elif isinstance(value, int) and abs(value) > EXACT_INTEGERS:
            raise UsageError(
                f"{what} has the integer {value} at {place_text(place)}; integers from {-EXACT_INTEGERS} to "
                f"{EXACT_INTEGERS} are supported"
            )


def reference_place(reference: str) -> Place:
    """Return the place that the text of a ``$ref`` names.

    Raises:
        UsageError: it is not a place of the same document; the message is the end of a sentence.
    """
    if reference != "#" and not reference.startswith("#/"):
        raise UsageError(f"to {reference!r}; references within the schema, which begin with '#/', are supported")
    parts = unquote(reference).split("/")[1:]
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)
