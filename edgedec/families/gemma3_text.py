"""The language model of Gemma 3: Gemma 2 with norms of each head of queries and keys in place of the soft-caps.

Five of six layers have a window and a faster rotation than the sixth.

Source: 2503.19786; ``models/gemma3`` of transformers 5.23, whose defaults these are.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from edgedec.errors import BundleError
from edgedec.families._config import number, optional_number, size
from edgedec.families._decoder import build_decoder
from edgedec.families._layers import sliding_layers, windows
from edgedec.families._rope import Rotation, rotation
from edgedec.families.gemma import block
from edgedec.graph.graph import Graph

__all__ = ["build"]

_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_PATTERN, _GLOBAL_THETA, _LOCAL_THETA = 6, 1000000.0, 10000.0


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration; ``build_decoder`` documents the names of its values."""
    config = {**_DEFAULTS, **config}
    period = size(config, "sliding_window_pattern", _PATTERN)
    sliding = sliding_layers(config, lambda layer: (layer + 1) % period != 0)
    near, far = _rotations(config)
    settings = block(
        config,
        "hidden_activation",
        post_norms=True,
        head_norms=True,
        score_scale=number(config, "query_pre_attn_scalar") ** -0.5,
        logits_cap=optional_number(config, "final_logit_softcapping"),
        rotations=tuple(near if one else far for one in sliding),
        windows=windows(config, sliding),
    )
    return build_decoder(config, settings)


def _rotations(config: Mapping[str, Any]) -> tuple[Rotation, Rotation]:
    """Return the rotations of layers with a window and without; the older ``rope_scaling`` applies to the latter only."""
    both = config.get("rope_parameters")
    if both is None:
        near: Any = {"rope_theta": config.get("rope_local_base_freq", _LOCAL_THETA)}
        scaling = config.get("rope_scaling") or {}
        if not isinstance(scaling, Mapping):
            raise BundleError(f"configuration: rope_scaling must be an object, not {reprlib.repr(scaling)}")
        far: Any = {"rope_theta": config.get("rope_theta", _GLOBAL_THETA), **scaling}
    elif isinstance(both, Mapping):
        near, far = (both.get(f"{kind}_attention") or {} for kind in ("sliding", "full"))
    else:
        raise BundleError(f"configuration: rope_parameters must be an object, not {reprlib.repr(both)}")
    if not isinstance(near, Mapping) or not isinstance(far, Mapping):
        raise BundleError("configuration: rope_parameters must hold an object for each kind of layer")
    return (
        rotation({**config, "rope_parameters": {"rope_theta": _LOCAL_THETA, **near}}),
        rotation({**config, "rope_parameters": {"rope_theta": _GLOBAL_THETA, **far}}),
    )
