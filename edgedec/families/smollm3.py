"""SmolLM 3: Llama's block; every fourth layer does not rotate.

SmolLM 1 and 2 belong to the family ``llama``.

Source: the SmolLM3 report (huggingface.co/blog/smollm3), 2501.18795 (layers without rotation); ``models/smollm3`` of
transformers 5.23, whose defaults these are.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from edgedec.errors import BundleError
from edgedec.families._config import flag, layers, only, optional_size, size
from edgedec.families._decoder import DecoderBlock, build_decoder
from edgedec.families._layers import sliding_layers, windows
from edgedec.families._rope import rotation
from edgedec.graph.graph import Graph

__all__ = ["build"]

_KV_HEADS, _THETA, _INTERVAL = 4, 2000000.0, 4


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration; ``build_decoder`` documents the names of its values."""
    only(config, "hidden_act", (None, "silu"))
    config = {"num_key_value_heads": _KV_HEADS, "rope_theta": _THETA, **config}
    rotates, bias, turn = _rotates(config), flag(config, "attention_bias"), rotation(config)
    has_window = flag(config, "use_sliding_window") and optional_size(config, "sliding_window") is not None
    sliding = sliding_layers(config, lambda layer: has_window and not rotates[layer])
    block = DecoderBlock(
        tied=True,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=flag(config, "mlp_bias"),
        rotations=tuple(turn if one else None for one in rotates),
        windows=windows(config, sliding) if has_window else (None,) * len(sliding),
    )
    return build_decoder(config, block)


def _rotates(config: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return True for each layer that rotates. Despite its name, ``no_rope_layers`` has a 1 for these layers."""
    count, flags = layers(config), config.get("no_rope_layers")
    if flags is None:
        interval = size(config, "no_rope_layer_interval", _INTERVAL)
        return tuple((layer + 1) % interval != 0 for layer in range(count))
    if not isinstance(flags, list) or len(flags) < count or any(one not in (0, 1) for one in flags):
        raise BundleError(
            f"configuration: no_rope_layers must be a list of {count} zeros and ones, not {reprlib.repr(flags)}"
        )
    return tuple(bool(one) for one in flags[:count])
