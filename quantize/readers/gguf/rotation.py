"""Convert llama.cpp's settings of rotations to ``rope_scaling`` of Hugging Face configurations.

llama.cpp divides the frequency of each pair of columns by ``rope.scaling.factor``, or by the older ``rope.scale_linear``,
unless ``rope.scaling.type`` is "none", and by the pair's factor if there is a tensor of factors. The type "yarn" keeps the
pairs that turn often within the original context, and scales queries and keys by 1 + 0.1 ln(factor).
``rope.scaling.attn_factor`` scales them further, for every type.

Source: ``llama-context.cpp`` and ``ggml_rope_cache_init`` of llama.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.gguf.keys import ArchitectureKeys, short
from edgedec.quantize.readers.untrusted import shown

__all__ = ["ROPE_FACTORS", "SCALINGS", "RopeFactors", "rope_scaling", "window_rotation"]

# Tensors of rotation factors: for every context, for contexts up to the original one, and for longer contexts.
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
RopeFactors = Mapping[str, NDArray[np.float32]]
_LISTS = "phi3"  # the family whose only scaling is by lists of factors
SCALINGS = ("none", "linear", "yarn", "longrope")  # values of rope.scaling.type; "longrope" alone scales as "linear"


def rope_scaling(
    reader: ArchitectureKeys, config: Mapping[str, Any], turned: int, factors: RopeFactors
) -> dict[str, Any] | None:
    """Return ``rope_scaling``, or None if there is none. ``turned`` columns of a head are rotated.

    Raises:
        BundleError: a setting is damaged, or a tensor of factors has another size or lacks its counterpart.
        UnsupportedError: the type is unknown, or a tensor of factors is combined with YaRN.
    """
    path, kind = reader.header.path, reader.text("rope.scaling.type", "linear")
    if kind not in SCALINGS:
        raise UnsupportedError(
            f"{path}: {reader.name}.rope.scaling.type {shown(kind)} is not read; known: {', '.join(SCALINGS)}"
        )
    factor = _factor(reader, kind)
    if factors and kind == "yarn":
        raise UnsupportedError(
            f"{path}: {min(factors)!r} together with {reader.name}.rope.scaling.type yarn is not read"
        )
    for name, values in factors.items():
        if values.shape != (turned // 2,) or not np.isfinite(values).all() or (values <= 0).any():
            raise BundleError(f"{path}: tensor {name!r} must be {turned // 2} positive numbers, not {values.shape}")
    magnitude = short(reader.number("rope.scaling.attn_factor", 1.0))
    original = reader.integer("rope.scaling.original_context_length", config["max_position_embeddings"])
    everywhere, near, far = (factors.get(name) for name in ROPE_FACTORS)
    if everywhere is not None:
        found = _llama3(config["rope_theta"], turned, everywhere) if (factor, magnitude) == (1, 1) else None
        return found or _listed(config, everywhere * np.float32(factor), magnitude)
    if near is not None and far is not None:
        return {
            "rope_type": "longrope",
            "short_factor": _numbers(near * np.float32(factor)),
            "long_factor": _numbers(far * np.float32(factor)),
            "attention_factor": magnitude,
            "original_max_position_embeddings": original,
        }
    if factors:
        raise BundleError(f"{path}: tensor {min(factors)!r} needs the one for shorter or longer contexts as well")
    if kind == "yarn":
        yarn: dict[str, Any] = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        return yarn if magnitude == 1 else yarn | {"attention_factor": (1 + 0.1 * math.log(factor)) * magnitude}
    if magnitude != 1 or factor < 1 or (factor != 1 and config["model_type"] == _LISTS):
        return _listed(config, np.full(turned // 2, factor, np.float32), magnitude)
    return {"rope_type": "linear", "factor": factor} if factor != 1 else None


def _factor(reader: ArchitectureKeys, kind: str) -> float:
    """Return the factor by which the context was extended; 0 stands for none.

    Raises:
        UnsupportedError: YaRN has a factor below 1, which would shorten the context.
    """
    keys = ("rope.scaling.factor", "rope.scale_linear")
    values = [short(reader.number(key, 1.0, zero=1.0)) for key in keys]
    factor = values[0] if reader.has(keys[0]) else values[1]
    if kind == "yarn" and factor < 1:
        raise UnsupportedError(f"{reader.header.path}: {reader.name}.{keys[0]} {factor} of YaRN is below 1")
    return 1.0 if kind == "none" else factor


def window_rotation(reader: ArchitectureKeys, config: Mapping[str, Any], turned: int) -> dict[str, Any]:
    """Return the scaling in layers with a window, which have a base of their own and only the magnitude of the others."""
    magnitude = short(reader.number("rope.scaling.attn_factor", 1.0))
    return {} if magnitude == 1 else _listed(config, np.ones(turned // 2, np.float32), magnitude)


def _numbers(factors: NDArray[np.float32]) -> list[float]:
    return [float(factor) for factor in factors]


def _listed(config: Mapping[str, Any], factors: NDArray[np.float32], magnitude: float) -> dict[str, Any]:
    """Return factors for every context and a magnitude, which no other kind of scaling has together."""
    return {
        "rope_type": "longrope",
        "short_factor": _numbers(factors),
        "long_factor": _numbers(factors),
        "attention_factor": magnitude,
        "original_max_position_embeddings": config["max_position_embeddings"],
    }


def _llama3(theta: float, turned: int, factors: NDArray[np.float32]) -> dict[str, Any] | None:
    """Return Llama 3.1's scaling if the factors match it."""
    plain = theta ** (-2 * np.arange(turned // 2) / turned)
    slowest, low, high, original = short(float(factors.max())), 1.0, 4.0, 8192
    keep = np.clip((original * plain / (2 * np.pi) - low) / (high - low), 0, 1)
    if not np.allclose(1 / (keep + (1 - keep) / slowest), factors, rtol=1e-4):
        return None
    return {
        "rope_type": "llama3",
        "factor": slowest,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
