"""Step-3's language model without experts: Llama's block with multi-matrix factorization attention.

Queries are computed from few columns, which all heads share, and all heads read one key and value of many columns. So a
state has one head, whatever the number of query heads.

Source: 2412.19255 (the attention), 2507.19427 (Step-3); names and defaults are those of the model's own code for
transformers.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from edgedec.errors import UnsupportedError
from edgedec.families._config import layers, only, size
from edgedec.families._decoder import DecoderBlock, build_decoder
from edgedec.graph.graph import Graph

__all__ = ["build"]

_DEFAULTS: Mapping[str, Any] = {"head_dim": 256, "share_q_dim": 2048, "rope_theta": 500000.0}
_EXPERTS = "moe_layers_enum"  # the layers that are mixtures of experts: a list, or its numbers with commas in between


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration; ``build_decoder`` documents the names of its values.

    Raises:
        BundleError: a size is missing or out of range.
        UnsupportedError: a layer is a mixture of experts, or another setting is not supported.
    """
    only(config, "hidden_act", (None, "silu"))
    for key in ("num_attention_groups", "num_key_value_heads"):
        only(config, key, (None, 1))
    _check_dense(config)
    given = {key: value for key, value in config.items() if value is not None}
    config = {**_DEFAULTS, **given, "num_key_value_heads": 1}
    block = DecoderBlock(default_eps=1e-5, query_rank=size(config, "share_q_dim"))
    return build_decoder(config, block)


def _check_dense(config: Mapping[str, Any]) -> None:
    """Check that no layer is a mixture of experts.

    Raises:
        UnsupportedError: a layer is one, or the list of these layers is absent, which means all layers but the first.
    """
    experts, count = config.get(_EXPERTS), layers(config)
    if isinstance(experts, str):
        experts = [part for part in experts.split(",") if part.strip()]
    numbers = experts if isinstance(experts, list | tuple) else range(1, count)
    if any(not str(number).strip().isdecimal() or int(number) < count for number in numbers):
        raise UnsupportedError(
            f"configuration: {_EXPERTS} {reprlib.repr(config.get(_EXPERTS))} has layers that are mixtures of experts, which "
            f"are not supported; an empty list, or one without the layers 0 to {count - 1}, is a model without"
        )
