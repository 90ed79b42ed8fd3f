"""Phi 3, 3.5 and 4 (also mini): Llama's block, part of each head rotated in Phi 4 mini.

Checkpoints hold q|k|v and gate|up as one matrix each; the reader of Hugging Face folders takes them apart.

Source: 2404.14219, 2503.01743; ``models/phi3`` of transformers 5.23, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.families._config import layers, only, optional_size
from edgedec.families._decoder import Block, build_decoder
from edgedec.families._rope import rotation
from edgedec.graph import Graph

__all__ = ["build"]

_POSITIONS, _POSITION_KEYS = 4096, ("max_position_embeddings", "original_max_position_embeddings")


def build(config: Mapping[str, Any]) -> Graph:
    """See ``build_decoder`` for the names of values."""
    only(config, "hidden_act", (None, "silu"))
    config = {**dict.fromkeys(_POSITION_KEYS, _POSITIONS), **config}
    count = layers(config)
    block = Block(
        default_eps=1e-5,
        rotations=(rotation(config, kinds=("default", "longrope"), partial=True),) * count,
        windows=(optional_size(config, "sliding_window"),) * count,
    )
    return build_decoder(config, block)
