"""Mutate a JSON text's values and keys: the result is JSON with another meaning."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

from tests.attacks.fuzz.mutators.raw import INTEGERS, Mutator, mutate_bytes

__all__ = ["changed_value", "json_text", "plain_value"]

Place = tuple[Any, Any]  # a list or an object, and a place in it
_TEXTS = (
    "",
    " ",
    "a",
    "<s>",
    "\0",
    "\u001b[2J",
    "\ud800",
    "é",
    "\u2581",
    "a" * 300,
    "../x",
    "(a*)*b",
    "{{ x }}",
    "-1",
    "1e999",
)
_NUMBERS = (-1, -(1 << 63), 0.0, -0.0, 0.5, 1.0, 1e-320, 1e-30, 1e30, 1e38, 1e39, 1e300, 1.0000000000000002, 2.0**127)


def plain_value(rng: random.Random, words: Sequence[str]) -> Any:
    """Return a value with little content."""
    kind = rng.randrange(8)
    if kind < 2 and words:
        return rng.choice(words)
    if kind < 4:
        return rng.choice(INTEGERS)
    if kind == 4:
        return rng.choice(_NUMBERS)
    if kind == 5:
        return rng.choice(_TEXTS)
    return rng.choice((None, True, False, [], {}, [1], [[]], {"a": 1}, [None], ["a"], [0.5] * 2))


def _places(value: Any, places: list[Place], depth: int = 0) -> list[Place]:
    if depth < 40:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            places.append((value, key))
            _places(inner, places, depth + 1)
    return places


def _tweaked(rng: random.Random, value: Any, words: Sequence[str]) -> Any:
    """Return a value near ``value``."""
    if isinstance(value, bool) or value is None:
        return rng.choice((True, False, None, 0, 1))
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, value * 2, value // 2, float(value), str(value), [value]))
    if isinstance(value, float):
        return rng.choice((-value, value * 2, value / 3, 1 / value if value else 1.0, int(value), rng.choice(_NUMBERS)))
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        replacement = rng.choice((*_TEXTS, *words))
        return rng.choice(
            (value[:at], value[at:], value + replacement, value[:at] + replacement + value[at:], value * 2, replacement)
        )
    return plain_value(rng, words)


def _reshaped(rng: random.Random, value: Any, words: Sequence[str]) -> None:
    """Add to a list or an object, or remove from it."""
    if isinstance(value, list):
        kind = rng.randrange(4)
        if kind == 0 or not value:
            value.insert(rng.randrange(len(value) + 1), plain_value(rng, words))
        elif kind == 1:
            value.insert(rng.randrange(len(value) + 1), copy.deepcopy(rng.choice(value)))
        elif kind == 2:
            rng.shuffle(value)
        else:
            del value[rng.randrange(len(value)) :]
    elif isinstance(value, dict):
        if value and rng.random() < 0.4:
            key = rng.choice(list(value))
            value[rng.choice((*words, key + "x", *_TEXTS))] = value.pop(key)
        else:
            value[rng.choice(words or _TEXTS)] = plain_value(rng, words)


def changed_value(rng: random.Random, root: Any, words: Sequence[str]) -> Any:
    """Return ``root`` with one change, in place if possible."""
    places = _places(root, [])
    if not places or rng.random() < 0.02:
        return plain_value(rng, words)
    if rng.random() < 0.15:
        _reshaped(rng, root, words)
        return root
    holder, key = rng.choice(places)
    kind = rng.randrange(6)
    if kind == 0:
        holder[key] = plain_value(rng, words)
    elif kind == 1:
        del holder[key]
    elif kind == 2:
        other_parent, at = rng.choice(places)
        holder[key] = copy.deepcopy(other_parent[at])
    elif kind == 3 and isinstance(holder[key], list | dict):
        _reshaped(rng, holder[key], words)
    elif kind == 4:
        _reshaped(rng, holder, words)
    else:
        holder[key] = _tweaked(rng, holder[key], words)
    return root


def json_text(words: Sequence[str]) -> Mutator:
    """Return a mutator; ``words`` are keys and texts that the reader knows."""

    def mutate(rng: random.Random, data: bytes) -> bytes:
        if rng.random() < 0.1:
            return mutate_bytes(rng, data)
        try:
            value = json.loads(data)
            for _ in range(rng.choice((1, 1, 2, 3))):
                value = changed_value(rng, value, words)
            return json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError, OverflowError):
            return mutate_bytes(rng, data)

    return mutate
