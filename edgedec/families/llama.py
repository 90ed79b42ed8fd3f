"""Llama 1 to 3 and everything that shares its blocks (TinyLlama, SmolLM, llama2.c).

Source: 2302.13971, 2307.09288, 2407.21783; configuration keys of Hugging Face's ``LlamaConfig``. ``rope_interleaved`` is
edgedec's own key: true for checkpoints whose q and k rows pair neighbours (llama2.c).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from edgedec.errors import BundleError
from edgedec.families._builder import GraphBuilder
from edgedec.families._config import number, only, size
from edgedec.families._rope import inverse_frequencies
from edgedec.graph import Graph, KvState

__all__ = ["build"]

# An operation's description is small, but a lying configuration could ask for millions of them.
MAX_LAYERS = 1 << 12
MAX_HEAD_DIM = 1 << 14


def build(config: Mapping[str, Any]) -> Graph:
    """Value names: ``layers.I.{attn_norm,q,k,v,attn,o,attn_out,mlp_norm,gate,up,down,out}``, ``final_norm``, ``logits``."""
    hidden, inter = size(config, "hidden_size"), size(config, "intermediate_size")
    heads = size(config, "num_attention_heads")
    kv_heads = size(config, "num_key_value_heads", heads)
    vocab = size(config, "vocab_size")
    eps = number(config, "rms_norm_eps", 1e-6)
    if config.get("head_dim") is None and hidden % heads:
        raise BundleError(f"configuration: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    head_dim = size(config, "head_dim", hidden // heads, limit=MAX_HEAD_DIM)
    if heads % kv_heads:
        raise BundleError(f"configuration: {heads} heads are not a multiple of num_key_value_heads {kv_heads}")
    if head_dim % 2:
        raise BundleError(f"configuration: head_dim must be even, not {head_dim}")
    only(config, "hidden_act", (None, "silu"))
    only(config, "sliding_window", (None,))
    attention_bias = bool(only(config, "attention_bias", (None, False, True)))
    mlp_bias = bool(only(config, "mlp_bias", (None, False, True)))
    interleaved = bool(only(config, "rope_interleaved", (None, False, True)))
    layout: Literal["half", "interleaved"] = "interleaved" if interleaved else "half"
    frequencies = inverse_frequencies(config, head_dim)

    g = GraphBuilder()
    x = g.embed("embed", weight="model.embed_tokens.weight", vocab=vocab, width=hidden)
    for i in range(size(config, "num_hidden_layers", limit=MAX_LAYERS)):
        at, hf = f"layers.{i}", f"model.layers.{i}"

        def linear(name: str, source: str, part: str, out: int, bias: bool, at: str = at, hf: str = hf) -> str:
            weight = f"{hf}.{part}.weight"
            return g.linear(f"{at}.{name}", source, weight=weight, bias=f"{hf}.{part}.bias" if bias else None, out=out)

        normed = g.rms_norm(f"{at}.attn_norm", x, weight=f"{hf}.input_layernorm.weight", eps=eps)
        q = linear("q_proj", normed, "self_attn.q_proj", heads * head_dim, attention_bias)
        k = linear("k_proj", normed, "self_attn.k_proj", kv_heads * head_dim, attention_bias)
        v = linear("v", normed, "self_attn.v_proj", kv_heads * head_dim, attention_bias)
        q = g.rope(f"{at}.q", q, head_dim=head_dim, layout=layout, inverse_frequencies=frequencies)
        k = g.rope(f"{at}.k", k, head_dim=head_dim, layout=layout, inverse_frequencies=frequencies)
        state = KvState(name=f"{at}.kv", kv_heads=kv_heads, head_dim=head_dim)
        mixed = g.attention(f"{at}.attn", q, k, v, state=state, heads=heads, scale=head_dim**-0.5)
        x = g.add(f"{at}.attn_out", x, linear("o", mixed, "self_attn.o_proj", hidden, attention_bias))

        normed = g.rms_norm(f"{at}.mlp_norm", x, weight=f"{hf}.post_attention_layernorm.weight", eps=eps)
        gate = linear("gate", normed, "mlp.gate_proj", inter, mlp_bias)
        up = linear("up", normed, "mlp.up_proj", inter, mlp_bias)
        gated = g.gated_activation(f"{at}.gated", gate, up, "silu")
        x = g.add(f"{at}.out", x, linear("down", gated, "mlp.down_proj", hidden, mlp_bias))

    # The rows whose logits are wanted are picked before the norm: a prefill needs one row of the head, not all.
    wanted = g.select_rows("wanted", x)
    normed = g.rms_norm("final_norm", wanted, weight="model.norm.weight", eps=eps)
    tied = bool(only(config, "tie_word_embeddings", (None, False, True)))
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    return g.graph(logits=g.linear("logits", normed, weight=head, out=vocab))
