"""Read values of Hugging Face configurations, and check them."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from edgedec.errors import BundleError, UnsupportedError

__all__ = ["MAX_LAYERS", "flag", "head_dim", "layers", "number", "only", "optional_number", "optional_size", "size"]

# Larger than in any real model; a damaged configuration must not cause huge allocations.
MAX_SIZE = 1 << 24
# Limit because a damaged configuration could cause millions of operations.
MAX_LAYERS = 1 << 12
_MAX_HEAD_DIM = 1 << 14


def size(config: Mapping[str, Any], key: str, default: int | None = None, *, limit: int = MAX_SIZE) -> int:
    """Return a positive integer up to ``limit``.

    Raises:
        BundleError: the value is missing, not an integer, or outside 1..limit.
    """
    value = config.get(key, default)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        raise BundleError(f"configuration: {key} must be an integer in 1..{limit}, not {reprlib.repr(value)}")
    return value


def number(config: Mapping[str, Any], key: str, default: float | None = None, *, low: float = 0.0) -> float:
    """Return a positive number, at least ``low``, that float32 can represent.

    Raises:
        BundleError: the value is missing, not a number, or out of range.
    """
    value = config.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 2**127 or value < low:
        least = f"of at least {low:g}" if low else "above 0"
        raise BundleError(f"configuration: {key} must be a number {least}, not {reprlib.repr(value)}")
    return float(value)


def only(config: Mapping[str, Any], key: str, allowed: tuple[Any, ...]) -> Any:
    """Return ``config[key]``, or None if it is absent, if the value is one of ``allowed``.

    Raises:
        UnsupportedError: it is another value.
    """
    value = config.get(key)
    if value not in allowed:
        raise UnsupportedError(
            f"configuration: {key} {reprlib.repr(value)} is not supported; known: {', '.join(map(repr, allowed))}"
        )
    return value


def flag(config: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """Return a truth value; ``default`` if it is absent or null.

    Raises:
        UnsupportedError: it is not a truth value.
    """
    value = only(config, key, (None, False, True))
    return default if value is None else bool(value)


def optional_size(config: Mapping[str, Any], key: str) -> int | None:
    """Return ``size``, or None if the key is absent or null."""
    return None if config.get(key) is None else size(config, key)


def optional_number(config: Mapping[str, Any], key: str) -> float | None:
    """Return ``number``, or None if the key is absent or null."""
    return None if config.get(key) is None else number(config, key)


def layers(config: Mapping[str, Any]) -> int:
    """Return ``num_hidden_layers``."""
    return size(config, "num_hidden_layers", limit=MAX_LAYERS)


def head_dim(config: Mapping[str, Any]) -> int:
    """Return ``head_dim``, or ``hidden_size`` divided by the number of heads.

    Raises:
        BundleError: a size is missing or out of range, the heads do not divide ``hidden_size``, or the result is odd.
    """
    hidden, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    if config.get("head_dim") is None and hidden % heads:
        raise BundleError(f"configuration: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    dim = size(config, "head_dim", hidden // heads, limit=_MAX_HEAD_DIM)
    if dim % 2:
        raise BundleError(f"configuration: head_dim must be even, not {dim}")
    return dim
