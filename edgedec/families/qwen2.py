"""Qwen 2 and 2.5: Llama's block with biases of queries, keys and values, and an optional window in the upper layers.

Source: 2407.10671, 2412.15115; ``models/qwen2`` of transformers 5.23, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.families._config import flag, only, size
from edgedec.families._decoder import DecoderBlock, build_decoder
from edgedec.families._layers import sliding_layers, windows
from edgedec.graph.graph import Graph

__all__ = ["build", "upper_windows"]

KV_HEADS, WINDOW = 32, 4096
_LEAST_LAYER = 28


def upper_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Return the window of each layer; with ``use_sliding_window``, layers from ``max_window_layers`` on have one."""
    least = config.get("max_window_layers", _LEAST_LAYER)
    least = least if least == 0 else size(config, "max_window_layers", _LEAST_LAYER)
    has_window = flag(config, "use_sliding_window") and config["sliding_window"] is not None
    sliding = sliding_layers(config, lambda layer: has_window and layer >= least)
    return windows(config, sliding) if has_window else (None,) * len(sliding)


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration; ``build_decoder`` documents the names of its values."""
    only(config, "hidden_act", (None, "silu"))
    config = {"num_key_value_heads": KV_HEADS, "sliding_window": WINDOW, **config}
    return build_decoder(config, DecoderBlock(qkv_bias=True, windows=upper_windows(config)))
