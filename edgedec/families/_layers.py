"""Layers that differ in what their attention sees: a sliding window, or everything."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from edgedec.errors import BundleError, UnsupportedError
from edgedec.families._config import layers, size

__all__ = ["sliding_layers", "windows"]

_FULL, _SLIDING = "full_attention", "sliding_attention"


def sliding_layers(config: Mapping[str, Any], usual: Callable[[int], bool]) -> tuple[bool, ...]:
    """For each layer whether it slides: what ``layer_types`` says, or ``usual(layer)`` without it.

    Raises:
        BundleError: ``layer_types`` is no list, or shorter than the model.
        UnsupportedError: it names another kind of layer.
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
    """The ``sliding_window`` of each layer that slides.

    Raises:
        BundleError: a layer slides and there is no window.
    """
    if not any(sliding):
        return (None,) * len(sliding)
    window = size(config, "sliding_window")
    return tuple(window if one else None for one in sliding)
