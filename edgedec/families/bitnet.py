"""BitNet b1.58: Llama's block with a norm before each output projection.

2B4T has a squared ReLU. The reproduction bitnet_b1_58-large (0.73B) has a SiLU and other names for its norms, which the
reader of its checkpoint translates. The weights are natively ternary; the reader decides their storage, and a graph pass
adds the int8 activations.

Source: 2504.12285 (BitNet b1.58 2B4T); ``models/bitnet`` of transformers 5.23, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.families._config import flag, only
from edgedec.families._decoder import DecoderBlock, build_decoder
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Activation

__all__ = ["build"]

_THETA = 500000.0


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration; ``build_decoder`` documents the names of its values."""
    activation: Activation = only(config, "hidden_act", (None, "relu2", "silu")) or "relu2"
    bias = flag(config, "attention_bias")
    block = DecoderBlock(activation=activation, default_eps=1e-5, qkv_bias=bias, o_bias=bias, sub_norms=True)
    return build_decoder({"rope_theta": _THETA, **config}, block)
