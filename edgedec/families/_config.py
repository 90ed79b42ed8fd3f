"""Checked reading of Hugging Face configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.errors import BundleError, UnsupportedError

__all__ = ["number", "only", "size"]

# No real model comes near; a lying header must not make us allocate.
MAX_SIZE = 1 << 24


def size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A positive integer.

    Raises:
        BundleError: missing, not an integer, or outside 1..2^24.
    """
    value = config.get(key, default)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SIZE:
        raise BundleError(f"configuration: {key} must be an integer in 1..{MAX_SIZE}, not {value!r}")
    return value


def number(config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A positive finite number.

    Raises:
        BundleError: missing, not a number, or not positive.
    """
    value = config.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise BundleError(f"configuration: {key} must be a positive number, not {value!r}")
    return float(value)


def only(config: Mapping[str, Any], key: str, allowed: tuple[Any, ...]) -> Any:
    """``config[key]`` (None when absent) if it is one of ``allowed``.

    Raises:
        UnsupportedError: it is something else.
    """
    value = config.get(key)
    if value not in allowed:
        raise UnsupportedError(
            f"configuration: {key} {value!r} is not supported; known: {', '.join(map(repr, allowed))}"
        )
    return value
