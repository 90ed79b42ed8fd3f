"""Make configurations of tiny models whose weights are stored rotated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SIZES: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attention_bias": False,
    "num_hidden_layers": 2,
}
_PARTS = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
LINEARS = tuple(f"model.layers.{layer}.{part}.weight" for layer in range(2) for part in _PARTS)
ROTATED: Mapping[str, Any] = {
    "block_size": 16,
    "signs": True,
    "weights": [*LINEARS, "lm_head.weight"],
    "inverse_weights": ["model.embed_tokens.weight"],
}


def rotated_config(**changes: Any) -> dict[str, Any]:
    """Return changes of ``make_tiny.CONFIG`` that rotate all weights, the embedding back; ``changes`` of the entry."""
    return {**SIZES, "hadamard": {**ROTATED, **changes}}
