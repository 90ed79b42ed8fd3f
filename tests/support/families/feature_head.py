"""A family for tests: a draft head that reads features beside ids, with one layer of Llama's kind.

``feature_size`` is the width of the features, and ``norm_features`` says whether they are normed before their matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.families._builder import GraphBuilder
from edgedec.families._config import flag, number, size
from edgedec.families._rope import rotation
from edgedec.graph.graph import Graph, KvState

__all__ = ["build"]


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph: embedding(ids) + fuse(features), attention, MLP, head."""
    hidden, inter, eps = size(config, "hidden_size"), size(config, "intermediate_size"), number(config, "rms_norm_eps")
    heads, kv_heads, head_dim = (
        size(config, f"{name}") for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    turn, g = rotation(config), GraphBuilder()
    assert turn is not None
    features = g.features(size(config, "feature_size"))
    if flag(config, "norm_features"):
        features = g.rms_norm("features_norm", features, weight="model.features_norm.weight", eps=eps)
    fused = g.linear("fuse", features, weight="model.fuse.weight", out=hidden)
    x = g.add(
        "joined",
        g.embed("embed", weight="model.embed_tokens.weight", vocab=size(config, "vocab_size"), width=hidden),
        fused,
    )

    normed = g.rms_norm("attn_norm", x, weight="model.attn_norm.weight", eps=eps)
    q = g.linear("q", normed, weight="model.q_proj.weight", out=heads * head_dim)
    k = g.linear("k", normed, weight="model.k_proj.weight", out=kv_heads * head_dim)
    v = g.linear("v", normed, weight="model.v_proj.weight", out=kv_heads * head_dim)
    q, k = (
        g.rope(f"{name}_rope", rows, head_dim=head_dim, layout="half", inverse_frequencies=turn.frequencies)
        for name, rows in (("q", q), ("k", k))
    )
    state = KvState(name="layers.0.kv", kv_heads=kv_heads, head_dim=head_dim)
    mixed = g.attention("attn", q, k, v, state=state, heads=heads, scale=head_dim**-0.5)
    x = g.add("attn_out", x, g.linear("o", mixed, weight="model.o_proj.weight", out=hidden))

    normed = g.rms_norm("mlp_norm", x, weight="model.mlp_norm.weight", eps=eps)
    gate = g.linear("gate", normed, weight="model.gate_proj.weight", out=inter)
    up = g.linear("up", normed, weight="model.up_proj.weight", out=inter)
    down = g.linear("down", g.gated_activation("gated", gate, up, "silu"), weight="model.down_proj.weight", out=hidden)
    x = g.add("layers.0.out", x, down)

    last = g.rms_norm("final_norm", g.select_rows("wanted", x), weight="model.norm.weight", eps=eps)
    return g.graph(logits=g.linear("logits", last, weight="lm_head.weight", out=size(config, "vocab_size")))
