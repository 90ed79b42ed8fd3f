"""Gemma: a scaled embedding that is also the head, norms with 1 + weight, and a GELU gate.

``rms_norm_offset`` is edgedec's own key: it is 0 for checkpoints whose norms already contain 1 + weight (GGUF).

Source: 2403.08295; ``models/gemma`` of transformers 5.23, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.families._config import flag, only, size
from edgedec.families._decoder import DecoderBlock, build_decoder
from edgedec.graph.graph import Graph

__all__ = ["DEFAULTS", "block", "build"]

DEFAULTS: Mapping[str, Any] = {"num_key_value_heads": 16, "head_dim": 256}
# The first checkpoints have "gelu" for its tanh form, and transformers uses this form for both names.
_ACTIVATIONS = (None, "gelu", "gelu_pytorch_tanh")


def block(config: Mapping[str, Any], activation_key: str, **more: Any) -> DecoderBlock:
    """Return the block of all Gemma versions, with further settings of a later version."""
    only(config, activation_key, _ACTIVATIONS)
    only(config, "use_bidirectional_attention", (None, False))
    offset = only(config, "rms_norm_offset", (None, 0, 1))
    bias = flag(config, "attention_bias")
    return DecoderBlock(
        activation="gelu_tanh",
        tied=True,
        qkv_bias=bias,
        o_bias=bias,
        norm_offset=1.0 if offset is None else float(offset),
        embed_scale=size(config, "hidden_size") ** 0.5,
        **more,
    )


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration; ``build_decoder`` documents the names of its values."""
    config = {**DEFAULTS, **config}
    return build_decoder(config, block(config, "hidden_act"))
