"""Layers whose attention has a sliding window, and layers that see everything."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from edgedec.errors import BundleError, UnsupportedError
from edgedec.families._config import layers, size

__all__ = ["sliding_layers", "windows"]

_FULL, _SLIDING = "full_attention", "sliding_attention"


def sliding_layers(config: Mapping[str, Any], usual: Callable[[int], bool]) -> tuple[bool, ...]:
    """Return True for each layer with a sliding window, by ``layer_types``, or by ``usual(layer)`` if it is absent.

    Raises:
        BundleError: ``layer_types`` is not a list, or is shorter than the model.
        UnsupportedError: it has another kind of layer.
    """
    count, kinds = layers(config), config.get("layer_types")
    if kinds is None:
        return tuple(usual(layer) for layer in range(count))
    if not isinstance(kinds, list) or len(kinds) < count:
        raise BundleError(f"configuration: layer_types must be a list of {count} kinds, not {reprlib.repr(kinds)}")
    for kind in kinds[:count]:
        if kind not in (_FULL, _SLIDING):
            raise UnsupportedError(
                f"configuration: layer_types {reprlib.repr(kind)} is not supported; known: {_FULL}, {_SLIDING}"
            )
    return tuple(kind == _SLIDING for kind in kinds[:count])


def windows(config: Mapping[str, Any], sliding: tuple[bool, ...]) -> tuple[int | None, ...]:
    """Return the window of each layer, which is ``sliding_window`` or None.

    Raises:
        BundleError: a layer slides, and ``sliding_window`` is missing.
    """
    if not any(sliding):
        return (None,) * len(sliding)
    window = size(config, "sliding_window")
    return tuple(window if one else None for one in sliding)
