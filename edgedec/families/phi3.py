"""Phi 3, 3.5 and 4 (also mini): Llama's block; Phi 4 mini rotates a part of each head.

Checkpoints have q|k|v and gate|up as one matrix each; the reader of Hugging Face folders splits them.

Source: 2404.14219, 2503.01743; ``models/phi3`` of transformers 5.23, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.families._config import layers, only, optional_size
from edgedec.families._decoder import DecoderBlock, build_decoder
from edgedec.families._rope import rotation
from edgedec.graph.graph import Graph

__all__ = ["build"]

_POSITIONS, _POSITION_KEYS = 4096, ("max_position_embeddings", "original_max_position_embeddings")


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration; ``build_decoder`` documents the names of its values."""
    only(config, "hidden_act", (None, "silu"))
    config = {**dict.fromkeys(_POSITION_KEYS, _POSITIONS), **config}
    count = layers(config)
    block = DecoderBlock(
        default_eps=1e-5,
        rotations=(rotation(config, kinds=("default", "longrope"), partial=True),) * count,
        windows=(optional_size(config, "sliding_window"),) * count,
    )
    return build_decoder(config, block)
