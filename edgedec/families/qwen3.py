"""Qwen 3: Llama's block with a norm of each head of queries and keys.

Source: 2505.09388; ``models/qwen3`` of transformers 5.23, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.families._config import flag, only
from edgedec.families._decoder import DecoderBlock, build_decoder
from edgedec.families.qwen2 import KV_HEADS, WINDOW, upper_windows
from edgedec.graph.graph import Graph

__all__ = ["build"]

_HEAD_DIM = 128


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration; ``build_decoder`` documents the names of its values."""
    only(config, "hidden_act", (None, "silu"))
    config = {"num_key_value_heads": KV_HEADS, "head_dim": _HEAD_DIM, "sliding_window": WINDOW, **config}
    bias = flag(config, "attention_bias")
    block = DecoderBlock(qkv_bias=bias, o_bias=bias, head_norms=True, windows=upper_windows(config))
    return build_decoder(config, block)
