"""Falcon H1: attention and a mixer of Mamba 2 side by side in each layer, with constant factors at many places.

Source: 2507.22448; ``models/falcon_h1`` of transformers 5.24, whose defaults these are.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from edgedec.errors import BundleError
from edgedec.families._builder import GraphBuilder
from edgedec.families._config import flag, head_dim, layers, number, only, size
from edgedec.families._mamba import MOST_TAPS, Mixer, mixer, step_limits
from edgedec.families._rope import rotation
from edgedec.graph.graph import Graph, KvState

__all__ = ["build"]

_EMBEDDING = "model.embed_tokens.weight"


def build(config: Mapping[str, Any]) -> Graph:
    """Build the graph of a configuration of ``FalconH1ForCausalLM``.

    The names of values are ``layers.I.{norm,q,k,v,attn,o,sum,attn_out,mlp_norm,gate,up,gated,down,out}``, those of
    ``mixer`` behind ``layers.I.mamba``, ``final_norm``, ``logits``; behind a factor that is not 1 the name has the end
    ``_scaled``.

    Raises:
        BundleError: a size or a factor is missing or out of range, or sizes do not fit each other.
        UnsupportedError: a setting is not supported.
    """
    return _FalconH1(config).graph()


class _FalconH1:
    def __init__(self, config: Mapping[str, Any]) -> None:
        only(config, "hidden_act", (None, "silu"))
        self.config, self.g = config, GraphBuilder()
        self.hidden, self.vocab = size(config, "hidden_size"), size(config, "vocab_size")
        self.inter, self.eps = size(config, "intermediate_size"), number(config, "rms_norm_eps", 1e-5)
        self.heads = size(config, "num_attention_heads")
        self.kv_heads = _size_or(config, "num_key_value_heads", 8, self.heads)
        if self.heads % self.kv_heads:
            raise BundleError(
                f"configuration: {self.heads} heads are not a multiple of num_key_value_heads {self.kv_heads}"
            )
        self.head_dim, self.turn = head_dim(config), rotation(config)
        self.gate_factor, self.down_factor = _factors(config, "mlp_multipliers", 2)
        self.mixer = self._mixer()

    def _mixer(self) -> Mixer:
        config, normed = self.config, flag(self.config, "mamba_rms_norm")
        if normed:
            only(config, "mamba_norm_before_gate", (False,))
        inner = _size_or(config, "mamba_d_ssm", 1024, size(config, "mamba_expand", 2) * self.hidden)
        heads = size(config, "mamba_n_heads", 128)
        auto = config.get("mamba_d_head", "auto") == "auto"
        dim = inner // heads if auto else size(config, "mamba_d_head")
        if heads * dim != inner:
            raise BundleError(f"configuration: {heads} mamba_n_heads of {dim} are not mamba_d_ssm, which is {inner}")
        before = self._factor("ssm_in_multiplier")
        return Mixer(
            hidden=self.hidden,
            heads=heads,
            head_dim=dim,
            state=size(config, "mamba_d_state", 256),
            groups=size(config, "mamba_n_groups", 1),
            kernel=size(config, "mamba_d_conv", 4, limit=MOST_TAPS),
            eps=self.eps if normed else None,
            bias=flag(config, "mamba_proj_bias"),
            conv_bias=flag(config, "mamba_conv_bias", True),
            limits=step_limits(config),
            multipliers=tuple(before * factor for factor in _factors(config, "ssm_multipliers", 5)),
        )

    def _factor(self, key: str) -> float:
        return number(self.config, key, 1.0)

    def _linear(self, name: str, x: str, module: str, out: int, bias: bool) -> str:
        return self.g.linear(name, x, weight=f"{module}.weight", bias=f"{module}.bias" if bias else None, out=out)

    def _norm(self, name: str, x: str, module: str) -> str:
        return self.g.rms_norm(name, x, weight=f"{module}.weight", eps=self.eps)

    def graph(self) -> Graph:
        g = self.g
        scale = self._factor("embedding_multiplier")
        x = g.embed("embed", weight=_EMBEDDING, vocab=self.vocab, width=self.hidden, scale=scale)
        for layer in range(layers(self.config)):
            at, hf = f"layers.{layer}", f"model.layers.{layer}"
            normed = self._norm(f"{at}.norm", x, f"{hf}.input_layernorm")
            mixed = mixer(g, self.mixer, f"{at}.mamba", f"{hf}.mamba", normed)
            mixed = g.scale(f"{at}.mamba_scaled", mixed, [self._factor("ssm_out_multiplier")])
            both = g.add(f"{at}.sum", mixed, self._attention(at, hf, normed))
            x = self._mlp(at, hf, g.add(f"{at}.attn_out", x, both))
        normed = self._norm("final_norm", g.select_rows("wanted", x), "model.final_layernorm")
        # The factor of the logits stands before their matrix, which is the last operation of every graph.
        normed = g.scale("final_norm_scaled", normed, [self._factor("lm_head_multiplier")])
        weight = _EMBEDDING if flag(self.config, "tie_word_embeddings") else "lm_head.weight"
        return g.graph(logits=g.linear("logits", normed, weight=weight, out=self.vocab))

    def _attention(self, at: str, hf: str, normed: str) -> str:
        g, bias, dim = self.g, flag(self.config, "attention_bias"), self.head_dim
        x = g.scale(f"{at}.norm_scaled", normed, [self._factor("attention_in_multiplier")])
        q = self._linear(f"{at}.q_proj", x, f"{hf}.self_attn.q_proj", self.heads * dim, bias)
        k = self._linear(f"{at}.k_proj", x, f"{hf}.self_attn.k_proj", self.kv_heads * dim, bias)
        v = self._linear(f"{at}.v", x, f"{hf}.self_attn.v_proj", self.kv_heads * dim, bias)
        q, k = (
            g.rope(
                f"{at}.{part}",
                rows,
                head_dim=dim,
                layout="half",
                inverse_frequencies=self.turn.frequencies,
                magnitude=self.turn.magnitude,
            )
            for part, rows in (("q", q), ("k", k))
        )
        state = KvState(name=f"{at}.kv", kv_heads=self.kv_heads, head_dim=dim)
        # Scores are linear in the keys, so the factor of these becomes one of the scores.
        scale = dim**-0.5 * self._factor("key_multiplier")
        mixed = g.attention(f"{at}.attn", q, k, v, state=state, heads=self.heads, scale=scale)
        out = self._linear(f"{at}.o", mixed, f"{hf}.self_attn.o_proj", self.hidden, bias)
        return g.scale(f"{at}.o_scaled", out, [self._factor("attention_out_multiplier")])

    def _mlp(self, at: str, hf: str, x: str) -> str:
        g, bias = self.g, flag(self.config, "mlp_bias")
        normed = self._norm(f"{at}.mlp_norm", x, f"{hf}.pre_ff_layernorm")
        gate = self._linear(f"{at}.gate", normed, f"{hf}.feed_forward.gate_proj", self.inter, bias)
        gate = g.scale(f"{at}.gate_scaled", gate, [self.gate_factor])
        up = self._linear(f"{at}.up", normed, f"{hf}.feed_forward.up_proj", self.inter, bias)
        gated = g.gated_activation(f"{at}.gated", gate, up, "silu")
        out = self._linear(f"{at}.down", gated, f"{hf}.feed_forward.down_proj", self.hidden, bias)
        return g.add(f"{at}.out", x, g.scale(f"{at}.down_scaled", out, [self.down_factor]))


def _size_or(config: Mapping[str, Any], key: str, usual: int, null: int) -> int:
    """Return a size that is ``usual`` if it is absent, and ``null`` if it is null."""
    return size(config, key, null if key in config else usual)


def _factors(config: Mapping[str, Any], key: str, count: int) -> tuple[float, ...]:
    """Return a list of positive factors; ones if it is absent.

    Raises:
        BundleError: it has another length, or an entry is no positive number.
    """
    values = config.get(key)
    if values is None:
        return (1.0,) * count
    if not isinstance(values, list | tuple) or len(values) != count:
        raise BundleError(f"configuration: {key} must be a list of {count} numbers, not {reprlib.repr(values)}")
    return tuple(number({key: value}, key) for value in values)
