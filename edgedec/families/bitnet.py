"""BitNet b1.58: Llama's block with a norm before each output projection, and usually a squared ReLU.

Its weights are natively ternary; how they are stored is the reader's business, and int8 activations a pass's.

Source: 2504.12285 (BitNet b1.58 2B4T); ``models/bitnet`` of transformers 5.23, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.families._config import only
from edgedec.families._decoder import Activation, build_decoder
from edgedec.graph import Graph

__all__ = ["build"]

_THETA = 500000.0


def build(config: Mapping[str, Any]) -> Graph:
    """See ``build_decoder`` for the names of values."""
    activation: Activation = only(config, "hidden_act", (None, "relu2", "silu")) or "relu2"
    # Keys of the class that transformers' BitNet modules never read must not change the graph.
    config = {"rope_theta": _THETA, **config, "mlp_bias": False}
    return build_decoder(config, activation=activation, default_eps=1e-5, sub_norms=True)
