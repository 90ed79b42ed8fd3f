"""Qwen3-Next without experts: the layers of Qwen 3.5, with q, k, v and gate of a delta net in one matrix.

Source: 2412.06464; ``models/qwen3_next`` of transformers 5.24, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.errors import UnsupportedError
from edgedec.families._config import layers
from edgedec.families.qwen3_5_text import build_hybrid
from edgedec.graph.graph import Graph

__all__ = ["build"]

_DEFAULTS: Mapping[str, Any] = {"num_key_value_heads": 2, "head_dim": 256}
_EXPERTS = 512


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration; ``build_decoder`` and ``delta_net`` document the names of its values.

    Raises:
        UnsupportedError: a layer is a mixture of experts.
    """
    dense = config.get("mlp_only_layers") or ()
    if config.get("num_experts", _EXPERTS) and not (
        isinstance(dense, list | tuple) and set(range(layers(config))) <= set(dense)
    ):
        raise UnsupportedError(
            "configuration: num_experts is not 0, and mixtures of experts are not supported; mlp_only_layers names the "
            "layers without"
        )
    return build_hybrid({**_DEFAULTS, **config}, fused=True)
