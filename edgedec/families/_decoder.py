"""The decoder block that Llama and its relatives share: what differs between families are arguments.

Pre-norms with RMSNorm, rotary attention with grouped heads, a gated MLP; optionally a norm before each output projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from edgedec.errors import BundleError
from edgedec.families._builder import GraphBuilder
from edgedec.families._config import number, only, size
from edgedec.families._rope import inverse_frequencies
from edgedec.graph import Graph, KvState

__all__ = ["Activation", "build_decoder"]

Activation = Literal["silu", "relu2"]

# An operation's description is small, but a lying configuration could ask for millions of them.
MAX_LAYERS = 1 << 12
MAX_HEAD_DIM = 1 << 14


def build_decoder(
    config: Mapping[str, Any], *, activation: Activation, default_eps: float, sub_norms: bool = False
) -> Graph:
    """Value names: ``layers.I.{attn_norm,q,k,v,attn,o,attn_out,mlp_norm,gate,up,down,out}``, ``final_norm``, ``logits``;
    with ``sub_norms`` also ``layers.I.{attn_sub_norm,ffn_sub_norm}``, of what goes into ``o`` and ``down``.

    Raises:
        BundleError: a size is missing or out of range, or sizes do not fit each other.
        UnsupportedError: the configuration asks for what the block does not have.
    """
    hidden, inter = size(config, "hidden_size"), size(config, "intermediate_size")
    heads = size(config, "num_attention_heads")
    kv_heads = size(config, "num_key_value_heads", heads)
    vocab = size(config, "vocab_size")
    eps = number(config, "rms_norm_eps", default_eps)
    if config.get("head_dim") is None and hidden % heads:
        raise BundleError(f"configuration: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    head_dim = size(config, "head_dim", hidden // heads, limit=MAX_HEAD_DIM)
    if heads % kv_heads:
        raise BundleError(f"configuration: {heads} heads are not a multiple of num_key_value_heads {kv_heads}")
    if head_dim % 2:
        raise BundleError(f"configuration: head_dim must be even, not {head_dim}")
    if sub_norms and heads * head_dim != hidden:
        raise BundleError(
            f"configuration: {heads} heads of {head_dim} are not hidden_size {hidden}, as the sub-norm needs"
        )
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
        if sub_norms:
            mixed = g.rms_norm(f"{at}.attn_sub_norm", mixed, weight=f"{hf}.self_attn.attn_sub_norm.weight", eps=eps)
        x = g.add(f"{at}.attn_out", x, linear("o", mixed, "self_attn.o_proj", hidden, attention_bias))

        normed = g.rms_norm(f"{at}.mlp_norm", x, weight=f"{hf}.post_attention_layernorm.weight", eps=eps)
        gate = linear("gate", normed, "mlp.gate_proj", inter, mlp_bias)
        up = linear("up", normed, "mlp.up_proj", inter, mlp_bias)
        gated = g.gated_activation(f"{at}.gated", gate, up, activation)
        if sub_norms:
            gated = g.rms_norm(f"{at}.ffn_sub_norm", gated, weight=f"{hf}.mlp.ffn_sub_norm.weight", eps=eps)
        x = g.add(f"{at}.out", x, linear("down", gated, "mlp.down_proj", hidden, mlp_bias))

    # The rows whose logits are wanted are picked before the norm: a prefill needs one row of the head, not all.
    wanted = g.select_rows("wanted", x)
    normed = g.rms_norm("final_norm", wanted, weight="model.norm.weight", eps=eps)
    tied = bool(only(config, "tie_word_embeddings", (None, False, True)))
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    return g.graph(logits=g.linear("logits", normed, weight=head, out=vocab))
