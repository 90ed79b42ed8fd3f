"""Llama 1 to 3 and everything that shares its blocks (TinyLlama, SmolLM 1 and 2, llama2.c).

Source: 2302.13971, 2307.09288, 2407.21783; configuration keys of Hugging Face's ``LlamaConfig``. ``rope_interleaved`` is
edgedec's own key: true for checkpoints whose q and k rows pair neighbours (llama2.c).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.families._config import flag, only
from edgedec.families._decoder import DecoderBlock, build_decoder
from edgedec.graph.graph import Graph

__all__ = ["build"]


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration; ``build_decoder`` documents the names of its values."""
    only(config, "hidden_act", (None, "silu"))
    bias = flag(config, "attention_bias")
    return build_decoder(config, DecoderBlock(qkv_bias=bias, o_bias=bias, mlp_bias=flag(config, "mlp_bias")))
