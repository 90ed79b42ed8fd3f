"""Checked reading of Hugging Face configurations."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from edgedec.errors import BundleError, UnsupportedError

__all__ = ["number", "only", "size"]

# No real model comes near; a lying header must not make us allocate.
MAX_SIZE = 1 << 24


def size(config: Mapping[str, Any], key: str, default: int | None = None, *, limit: int = MAX_SIZE) -> int:
    """A positive integer up to ``limit``.

    Raises:
        BundleError: missing, not an integer, or outside 1..limit.
    """
    value = config.get(key, default)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        raise BundleError(f"configuration: {key} must be an integer in 1..{limit}, not {reprlib.repr(value)}")
    return value


def number(config: Mapping[str, Any], key: str, default: float | None = None, *, low: float = 0.0) -> float:
    """A positive number, at least ``low``, that float32 can hold.

    Raises:
        BundleError: missing, not a number, or out of range.
    """
    value = config.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 2**127 or value < low:
        least = f"of at least {low:g}" if low else "above 0"
        raise BundleError(f"configuration: {key} must be a number {least}, not {reprlib.repr(value)}")
    return float(value)


def only(config: Mapping[str, Any], key: str, allowed: tuple[Any, ...]) -> Any:
    """``config[key]`` (None when absent) if it is one of ``allowed``.

    Raises:
        UnsupportedError: it is something else.
    """
    value = config.get(key)
    if value not in allowed:
        raise UnsupportedError(
            f"configuration: {key} {reprlib.repr(value)} is not supported; known: {', '.join(map(repr, allowed))}"
        )
    return value
