"""Rotary frequencies with their scaling, computed once per model, so that executors need not know the variants.

Source: 2104.09864 (RoPE); 2306.15595 (linear interpolation); the Llama 3.1 model card's ``rope_scaling`` (llama3);
2309.00071 (YaRN); 2402.13753 (LongRoPE); ``modeling_rope_utils`` of transformers 5.23 for details that papers leave open.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgedec.errors import BundleError, UnsupportedError
from edgedec.families._config import flag, head_dim, number, optional_number, size

__all__ = ["KINDS", "Rotation", "longest_context", "rotation"]

_LEAST = 1e-30  # least divisor; quotients stay finite, also in float32
KINDS = ("default", "linear", "llama3", "yarn", "longrope", "dynamic")


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """The rotation of the queries and keys of a layer.

    Members:
        frequencies: radians per position of each rotated pair, [pairs].
        magnitude: factor of the rotated columns, in queries and in keys.
    """

    frequencies: tuple[float, ...]
    magnitude: float = 1.0


def _llama3(frequencies: list[float], scaling: Mapping[str, Any]) -> list[float]:
    """Return frequencies with long wavelengths slowed by ``factor``, short ones unchanged, and those between blended."""
    factor = number(scaling, "factor", low=1)
    low, high = number(scaling, "low_freq_factor"), number(scaling, "high_freq_factor")
    original = number(scaling, "original_max_position_embeddings")
    if not low < high:
        raise BundleError(f"configuration: rope low_freq_factor {low} must be below high_freq_factor {high}")
    result = []
    for frequency in frequencies:
        turns = original * frequency / (2 * math.pi)  # rotations of this pair within the original context
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        result.append(frequency * (keep + (1 - keep) / factor))
    return result


def _stretch(config: Mapping[str, Any], scaling: Mapping[str, Any]) -> tuple[float, int]:
    """Return (factor by which the context was extended, original context)."""
    original = _trained_positions(config, scaling)
    if scaling.get("factor") is not None:
        return number(scaling, "factor", low=1), original
    return max(1.0, size(config, "max_position_embeddings") / original), original


def _yarn(config: Mapping[str, Any], scaling: Mapping[str, Any], theta: float, dim: int) -> Rotation:
    """Keep pairs that turn often within the original context, and slow those that turn rarely by ``factor``."""
    factor, original = _stretch(config, scaling)
    if theta == 1:
        raise BundleError("configuration: rope_theta must be above 1 for rope scaling 'yarn'")

    def pair_that_turns(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    fast, slow = _turns(scaling, "beta_fast", 32.0), _turns(scaling, "beta_slow", 1.0)
    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if flag(scaling, "truncate", default=True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    frequencies = []
    for pair, frequency in enumerate(_plain(theta, dim)):
        slowed = min(1.0, max(0.0, (pair - low) / (high - low or 0.001)))
        frequencies.append(frequency * (1 - slowed + slowed / factor))
    return Rotation(frequencies=tuple(frequencies), magnitude=_yarn_magnitude(scaling, factor))


def _turns(scaling: Mapping[str, Any], key: str, usual: float) -> float:
    return usual if scaling.get(key) is None else number(scaling, key, low=_LEAST)


def _yarn_magnitude(scaling: Mapping[str, Any], factor: float) -> float:
    def of(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1

    factor_given = optional_number(scaling, "attention_factor")
    if factor_given is not None:
        return factor_given
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return of(number(scaling, "mscale")) / of(number(scaling, "mscale_all_dim"))
    return of(1)


def _longrope(config: Mapping[str, Any], scaling: Mapping[str, Any], theta: float, dim: int) -> Rotation:
    """Apply the short factors, which are valid up to the original context, the limit of ``families.context_size``.

    Longer texts would need other factors at every position, including those of keys that are in the cache already.
    """
    factor, original = _stretch(config, scaling)
    short = scaling.get("short_factor")
    if not isinstance(short, list) or len(short) != dim // 2:
        raise BundleError(
            f"configuration: rope short_factor must be a list of {dim // 2} numbers, not {reprlib.repr(short)}"
        )
    factors = [number({"short_factor": value}, "short_factor", low=_LEAST) for value in short]
    magnitude = optional_number(scaling, "attention_factor")
    if magnitude is None:
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    frequencies = (frequency / slower for frequency, slower in zip(_plain(theta, dim), factors, strict=True))
    return Rotation(frequencies=tuple(frequencies), magnitude=magnitude)


def _plain(theta: float, dim: int) -> list[float]:
    return [theta ** (-2 * pair / dim) for pair in range(dim // 2)]


def _scaling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise BundleError(f"configuration: rope_scaling must be an object, not {reprlib.repr(scaling)}")
    return scaling


def _kind(scaling: Mapping[str, Any]) -> Any:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    return "longrope" if kind == "su" else kind  # earlier name of longrope


def _trained_positions(config: Mapping[str, Any], scaling: Mapping[str, Any] | None = None) -> int:
    """Return the trained positions of the unscaled rotation: ``original_max_position_embeddings`` if it is present."""
    key = "original_max_position_embeddings"
    inside = _scaling(config) if scaling is None else scaling
    for place in (config, inside):
        if place.get(key) is not None:
            return size(place, key)
    return size(config, "max_position_embeddings")


def longest_context(config: Mapping[str, Any]) -> int | None:
    """Return the number of positions for which the rotation is valid; None if it has no limit.

    Raises:
        BundleError: the settings are not an object, or a number of positions is out of range.
    """
    return _trained_positions(config) if _kind(_scaling(config)) == "longrope" else None


def rotation(config: Mapping[str, Any], *, kinds: tuple[str, ...] = KINDS, partial: bool = False) -> Rotation:
    """Return the rotation of a configuration.

    It is read from ``rope_theta`` and ``rope_scaling``, or from the newer ``rope_parameters``, which has both.

    Args:
        kinds: scalings that the family supports.
        partial: True if the family can rotate a part of a head's columns (``partial_rotary_factor``).

    Raises:
        UnsupportedError: the scaling is unknown, or the family does not support a partial rotation.
        BundleError: a parameter of the scaling is missing or out of range.
    """
    scaling = _scaling(config)
    dim = _rotated_columns(config, scaling, partial)
    theta = number(scaling, "rope_theta", number(config, "rope_theta", 10000.0, low=1), low=1)
    kind = _kind(scaling)
    if kind not in kinds:
        raise UnsupportedError(
            f"configuration: rope scaling {reprlib.repr(kind)} is not supported; known: {', '.join(kinds)}"
        )
    if kind in ("default", "dynamic"):  # dynamic scaling only applies beyond the context
        return Rotation(frequencies=tuple(_plain(theta, dim)))
    if kind == "linear":
        factor = number(scaling, "factor", low=1)
        return Rotation(frequencies=tuple(frequency / factor for frequency in _plain(theta, dim)))
    if kind == "llama3":
        return Rotation(frequencies=tuple(_llama3(_plain(theta, dim), scaling)))
    if kind == "yarn":
        return _yarn(config, scaling, theta, dim)
    return _longrope(config, scaling, theta, dim)


def _rotated_columns(config: Mapping[str, Any], scaling: Mapping[str, Any], partial: bool) -> int:
    """Return the number of rotated columns of each head."""
    key, whole = "partial_rotary_factor", head_dim(config)
    place = scaling if scaling.get(key) is not None else config
    if place.get(key) in (None, 1):
        return whole
    if not partial:
        raise UnsupportedError(f"configuration: {key} other than 1 is not supported")
    columns = int(whole * number(place, key))
    if not 2 <= columns <= whole or columns % 2:
        raise BundleError(
            f"configuration: {key} {place[key]} rotates {columns} of {whole} columns of a head; the number must be "
            f"even and in 2..{whole}"
        )
    return columns
