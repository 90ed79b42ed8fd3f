"""Mistral: Llama's block, and in the first version a window in every layer.

Source: 2310.06825; ``models/mistral`` of transformers 5.23, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.families._config import layers, only, optional_size
from edgedec.families._decoder import DecoderBlock, build_decoder
from edgedec.graph.graph import Graph

__all__ = ["build"]

_KV_HEADS, _WINDOW = 8, 4096


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration; ``build_decoder`` documents the names of its values."""
    only(config, "hidden_act", (None, "silu"))
    config = {"num_key_value_heads": _KV_HEADS, "sliding_window": _WINDOW, **config}
    return build_decoder(config, DecoderBlock(windows=(optional_size(config, "sliding_window"),) * layers(config)))
