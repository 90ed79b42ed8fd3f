"""The storage schemes of weights and their meaning: float, int8, ternary planes and int4.

A *scheme* is a small frozen description in the bundle's manifest; a *weight* is a scheme with its arrays. The bytes of every
part follow from scheme and shape alone, so that a planner can count them without opening a file.
"""

from __future__ import annotations

import reprlib
from dataclasses import asdict
from typing import Any

from edgedec.errors import BundleError
from edgedec.schemes.floats import FloatScheme, FloatWeight
from edgedec.schemes.int4 import Int4Scheme, Int4Weight
from edgedec.schemes.int8 import Int8Scheme, Int8Weight
from edgedec.schemes.part import StoredPart
from edgedec.schemes.ternary import TernaryScheme, TernaryWeight, fold, split

__all__ = [
    "EmbeddingWeight",
    "FloatScheme",
    "FloatWeight",
    "Int4Scheme",
    "Int4Weight",
    "Int8Scheme",
    "Int8Weight",
    "Scheme",
    "StoredPart",
    "TernaryScheme",
    "TernaryWeight",
    "Weight",
    "fold",
    "scheme_features",
    "scheme_from_json",
    "scheme_to_json",
    "split",
]

Scheme = FloatScheme | Int8Scheme | TernaryScheme | Int4Scheme
EmbeddingWeight = FloatWeight | Int8Weight | TernaryWeight  # the weights of an embedding, which is never int4
Weight = EmbeddingWeight | Int4Weight


def scheme_features(scheme: Scheme) -> set[str]:
    """Return the names of the features (``requires`` of a manifest) without which a reader cannot use the scheme."""
    if isinstance(scheme, Int4Scheme):
        return {"int4"}
    if not isinstance(scheme, TernaryScheme):
        return set()
    return {name for name, used in (("tied_planes", scheme.tied), ("half_scales", scheme.half_scales)) if used}


def scheme_to_json(scheme: Scheme) -> dict[str, Any]:
    """Return the manifest entry of a scheme. Fields that older readers refuse are written if they are true only."""
    later = ("tied", "half_scales")
    return {"kind": scheme.kind, **{key: value for key, value in asdict(scheme).items() if key not in later or value}}


def scheme_from_json(name: str, data: Any) -> Scheme:
    """Return the scheme of a manifest entry, e.g. ``{"kind": "ternary", "planes": 2, "group_size": 64}``.

    Raises:
        BundleError: a kind or a key is unknown, or a value is out of range; the message names the tensor.
    """
    kinds: dict[str, type[Scheme]] = {cls.kind: cls for cls in (FloatScheme, Int8Scheme, TernaryScheme, Int4Scheme)}
    if not isinstance(data, dict) or data.get("kind") not in tuple(kinds):
        raise BundleError(f"tensor {name}: scheme must be one of {', '.join(kinds)}, not {reprlib.repr(data)}")
    fields = {key: value for key, value in data.items() if key != "kind"}
    try:
        return kinds[data["kind"]](**fields)
    except (TypeError, BundleError) as error:
        raise BundleError(f"tensor {name}: {error}") from None
