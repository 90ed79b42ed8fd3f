"""The language model of Qwen 3.5: three gated delta nets, then a layer of attention with an output gate.

``rms_norm_offset`` is edgedec's own key, as in Gemma: it is 0 for checkpoints whose norms already contain 1 + weight (GGUF).

Source: 2412.06464; ``models/qwen3_5`` of transformers 5.24, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.families._builder import GraphBuilder
from edgedec.families._config import flag, only
from edgedec.families._decoder import DecoderBlock, build_decoder
from edgedec.families._delta_net import delta_net
from edgedec.families._layers import delta_layers
from edgedec.families._rope import rotation
from edgedec.graph.graph import Graph

__all__ = ["build", "build_hybrid"]

_DEFAULTS: Mapping[str, Any] = {"num_key_value_heads": 4, "head_dim": 256}
_PARTIAL = 0.25  # share of a head's columns that is rotated


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration; ``build_decoder`` and ``delta_net`` document the names of its values."""
    return build_hybrid({**_DEFAULTS, **config}, fused=False)


def build_hybrid(config: Mapping[str, Any], *, fused: bool) -> Graph:
    """Return the graph of a model whose layers are gated delta nets and attention; see ``delta_net`` for ``fused``."""
    only(config, "hidden_act", (None, "silu"))
    offset = only(config, "rms_norm_offset", (None, 0, 1))
    bias, recurrent = flag(config, "attention_bias"), delta_layers(config)
    turn = rotation(_with_share(config), kinds=("default",), partial=True)

    def mixer(g: GraphBuilder, at: str, hf: str, x: str) -> str:
        return delta_net(g, config, at, hf, x, fused=fused)

    block = DecoderBlock(
        qkv_bias=bias,
        o_bias=bias,
        head_norms=True,
        norm_offset=1.0 if offset is None else float(offset),
        output_gate=True,
        rotations=(turn,) * len(recurrent),
        mixers={layer: mixer for layer, one in enumerate(recurrent) if one},
    )
    return build_decoder(config, block)


def _with_share(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration with the share of rotated columns that the class has if the files leave it out."""
    return config if config.get("partial_rotary_factor") is not None else {**config, "partial_rotary_factor": _PARTIAL}
