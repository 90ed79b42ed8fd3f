"""Gemma 2: Gemma with norms also after attention and MLP, with soft-caps, and with a window in every other layer.

Source: 2408.00118; ``models/gemma2`` of transformers 5.23, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.families._config import number, optional_number
from edgedec.families._decoder import build_decoder
from edgedec.families._layers import sliding_layers, windows
from edgedec.families.gemma import block
from edgedec.graph.graph import Graph

__all__ = ["build"]

_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration; ``build_decoder`` documents the names of its values."""
    config = {**_DEFAULTS, **config}
    settings = block(
        config,
        "hidden_activation",
        post_norms=True,
        score_scale=number(config, "query_pre_attn_scalar") ** -0.5,
        score_cap=optional_number(config, "attn_logit_softcapping"),
        logits_cap=optional_number(config, "final_logit_softcapping"),
        windows=windows(config, sliding_layers(config, lambda layer: layer % 2 == 0)),
    )
    return build_decoder(config, settings)
