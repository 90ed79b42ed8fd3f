"""Rotary frequencies with their scaling, computed once per model so that no executor knows the variants.

Source: 2104.09864 (RoPE); 2306.15595 (linear interpolation); the Llama 3.1 model card's ``rope_scaling`` (llama3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from edgedec.errors import BundleError, UnsupportedError
from edgedec.families._config import number

__all__ = ["inverse_frequencies"]


def _llama3(frequencies: list[float], scaling: Mapping[str, Any]) -> list[float]:
    """Long wavelengths are slowed by ``factor``, short ones kept, those between blended."""
    factor = number(scaling, "factor", low=1)
    low, high = number(scaling, "low_freq_factor"), number(scaling, "high_freq_factor")
    original = number(scaling, "original_max_position_embeddings")
    if not low < high:
        raise BundleError(f"configuration: rope low_freq_factor {low} must be below high_freq_factor {high}")
    result = []
    for frequency in frequencies:
        turns = original * frequency / (2 * math.pi)  # how often this pair turns within the original context
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        result.append(frequency * (keep + (1 - keep) / factor))
    return result


def inverse_frequencies(config: Mapping[str, Any], head_dim: int) -> tuple[float, ...]:
    """Radians per position of each rotated pair: [head_dim / 2].

    Reads ``rope_theta`` with ``rope_scaling``, or the newer ``rope_parameters`` that holds both.

    Raises:
        UnsupportedError: a scaling other than linear or llama3, or a partial rotation.
        BundleError: a parameter of the scaling is missing or out of range.
    """
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise BundleError(f"configuration: rope_scaling must be an object, not {scaling!r}")
    for place in (config, scaling):
        if place.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise UnsupportedError("configuration: partial_rotary_factor other than 1 is not supported")
    theta = number(scaling, "rope_theta", number(config, "rope_theta", 10000.0, low=1), low=1)
    frequencies = [theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return tuple(frequencies)
    if kind == "linear":
        factor = number(scaling, "factor", low=1)
        return tuple(frequency / factor for frequency in frequencies)
    if kind == "llama3":
        return tuple(_llama3(frequencies, scaling))
    raise UnsupportedError(f"configuration: rope scaling {kind!r} is not supported; known: default, linear, llama3")
