"""Kinds of layers: attention with a sliding window, attention that sees everything, and gated delta nets."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from edgedec.errors import BundleError, UnsupportedError
from edgedec.families._config import layers, size

__all__ = ["delta_layers", "recurrent_layers", "sliding_layers", "windows"]

_FULL, _SLIDING, _DELTA = "full_attention", "sliding_attention", "linear_attention"
_PERIOD = 4  # layers, the last of which has attention, if the configuration does not tell


def sliding_layers(config: Mapping[str, Any], usual: Callable[[int], bool]) -> tuple[bool, ...]:
    """Return True for each layer with a sliding window, by ``layer_types``, or by ``usual(layer)`` if it is absent.

    Raises:
        BundleError: ``layer_types`` is not a list, or is shorter than the model.
        UnsupportedError: it has another kind of layer.
    """
    return _layers_of(config, _SLIDING, usual)


def delta_layers(config: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return True for each layer that is a gated delta net, by ``layer_types`` or ``full_attention_interval``.

    Raises:
        BundleError: ``layer_types`` is not a list, or is shorter than the model, or the interval is out of range.
        UnsupportedError: there is another kind of layer.
    """
    period = size(config, "full_attention_interval", _PERIOD)
    return recurrent_layers(config, lambda layer: (layer + 1) % period != 0)


def recurrent_layers(config: Mapping[str, Any], usual: Callable[[int], bool]) -> tuple[bool, ...]:
    """Return True for each layer with a recurrent state, by ``layer_types``, or by ``usual(layer)`` if it is absent.

    Raises:
        BundleError: ``layer_types`` is not a list, or is shorter than the model.
        UnsupportedError: it has another kind of layer.
    """
    return _layers_of(config, _DELTA, usual)


def _layers_of(config: Mapping[str, Any], kind: str, usual: Callable[[int], bool]) -> tuple[bool, ...]:
    """Return True for each layer of a kind; the others have attention that sees everything."""
    count, kinds = layers(config), config.get("layer_types")
    if kinds is None:
        return tuple(usual(layer) for layer in range(count))
    if not isinstance(kinds, list) or len(kinds) < count:
        raise BundleError(f"configuration: layer_types must be a list of {count} kinds, not {reprlib.repr(kinds)}")
    for one in kinds[:count]:
        if one not in (_FULL, kind):
            raise UnsupportedError(
                f"configuration: layer_types {reprlib.repr(one)} is not supported; known: {_FULL}, {kind}"
            )
    return tuple(one == kind for one in kinds[:count])


def windows(config: Mapping[str, Any], sliding: tuple[bool, ...]) -> tuple[int | None, ...]:
    """Return the window of each layer, which is ``sliding_window`` or None.

    Raises:
        BundleError: a layer slides, and ``sliding_window`` is missing.
    """
    if not any(sliding):
        return (None,) * len(sliding)
    window = size(config, "sliding_window")
    return tuple(window if one else None for one in sliding)
