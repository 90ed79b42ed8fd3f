"""BitNet b1.58: Llama's block with a norm before each output projection.

2B4T has a squared ReLU; the reproduction called bitnet_b1_58-large (0.73B) a SiLU, and other names for its norms, which the
reader of its checkpoint translates. The weights are natively ternary; how they are stored is the reader's business too, and
int8 activations a pass's.

Source: 2504.12285 (BitNet b1.58 2B4T); ``models/bitnet`` of transformers 5.23, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.families._config import flag, only
from edgedec.families._decoder import Block, build_decoder
from edgedec.graph import Graph
from edgedec.ops import Activation

__all__ = ["build"]

_THETA = 500000.0


def build(config: Mapping[str, Any]) -> Graph:
    """See ``build_decoder`` for the names of values."""
    activation: Activation = only(config, "hidden_act", (None, "relu2", "silu")) or "relu2"
    bias = flag(config, "attention_bias")
    block = Block(activation=activation, default_eps=1e-5, qkv_bias=bias, o_bias=bias, sub_norms=True)
    return build_decoder({"rope_theta": _THETA, **config}, block)
