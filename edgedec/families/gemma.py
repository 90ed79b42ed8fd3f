"""Gemma: a scaled embedding that is also the head, norms around 1 + weight, a GELU gate.

``rms_norm_offset`` is edgedec's own key: 0 for checkpoints whose norms hold 1 + weight already (GGUF).

Source: 2403.08295; ``models/gemma`` of transformers 5.23, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.families._config import flag, only, size
from edgedec.families._decoder import Block, build_decoder
from edgedec.graph import Graph

__all__ = ["DEFAULTS", "block", "build"]

DEFAULTS: Mapping[str, Any] = {"num_key_value_heads": 16, "head_dim": 256}
# The first files said "gelu" and meant its tanh form, which transformers takes for both.
_ACTIVATIONS = (None, "gelu", "gelu_pytorch_tanh")


def block(config: Mapping[str, Any], activation_key: str, **more: Any) -> Block:
    """What all Gemmas share, and what a later one has besides."""
    only(config, activation_key, _ACTIVATIONS)
    only(config, "use_bidirectional_attention", (None, False))
    offset = only(config, "rms_norm_offset", (None, 0, 1))
    bias = flag(config, "attention_bias")
    return Block(
        activation="gelu_tanh",
        tied=True,
        qkv_bias=bias,
        o_bias=bias,
        norm_offset=1.0 if offset is None else float(offset),
        embed_scale=size(config, "hidden_size") ** 0.5,
        **more,
    )


def build(config: Mapping[str, Any]) -> Graph:
    """See ``build_decoder`` for the names of values."""
    config = {**DEFAULTS, **config}
    return build_decoder(config, block(config, "hidden_act"))
