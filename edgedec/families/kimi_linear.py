"""Kimi Linear without experts: delta attention with a decay of each channel, and attention over latents without positions.

The keys and values of a layer of attention are kept as they are expanded from its latent, and not the latent itself.

Source: 2510.26692; 2405.04434 (multi-head latent attention); ``models/kimi_linear`` of transformers 5.24, whose defaults
these are.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from edgedec.errors import BundleError, UnsupportedError
from edgedec.families._builder import GraphBuilder
from edgedec.families._config import flag, layers, number, only, optional_size, size
from edgedec.families._decoder import DecoderBlock, build_decoder
from edgedec.families._layers import recurrent_layers
from edgedec.families._mamba import MOST_TAPS
from edgedec.graph.graph import Graph, KvState

__all__ = ["build"]

_PERIOD = 4  # layers from one with attention to the next, if the configuration does not tell
_LATENT_EPS = 1e-6  # eps of the latents' norms, which no setting changes
_INNER = "linear_attn_config"  # object of the authors' files with the sizes and places of the delta attention
# Its keys, and those of transformers, with the defaults.
_DELTA_SIZES = {
    "head_dim": ("linear_head_dim", 128),
    "num_heads": ("linear_num_heads", 32),
    "short_conv_kernel_size": ("linear_conv_kernel_dim", 4),
}
_PLACES = ("kda_layers", "full_attn_layers")


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration.

    The names of values are those of ``build_decoder``. A layer of delta attention has
    ``layers.I.{q,k,v}_conv`` and ``layers.I.{delta,delta_norm,gated_delta,o}``, one of attention
    ``layers.I.{latent,expanded,k,v,attn,o}``.

    Raises:
        BundleError: a size or a list of layers is missing or not as it must be.
        UnsupportedError: a layer is a mixture of experts, or another setting is not supported.
    """
    for key, allowed in (
        ("hidden_act", (None, "silu")),
        ("mla_use_nope", (None, True)),
        ("num_nextn_predict_layers", (None, 0)),
        ("rope_scaling", (None,)),
    ):
        only(config, key, allowed)
    _check_dense(config)
    config, places = _with_delta_sizes(config)
    attention = _LatentAttention(config)

    def delta(g: GraphBuilder, at: str, hf: str, x: str) -> str:
        return _delta_attention(g, config, at, f"{hf}.self_attn", x)

    recurrent = recurrent_layers(config, lambda layer: places[layer])
    block = DecoderBlock(
        default_eps=1e-5,
        rotations=(None,) * len(recurrent),
        mixers={layer: delta if one else attention.append for layer, one in enumerate(recurrent)},
    )
    return build_decoder({**config, "head_dim": attention.dim}, block)


def _check_dense(config: Mapping[str, Any]) -> None:
    """Check that no layer is a mixture of experts.

    Raises:
        UnsupportedError: a layer is one.
    """
    count, kinds = layers(config), config.get("mlp_layer_types")
    if kinds is None:
        first = "first_k_dense_replace"
        dense = 0 if config.get(first) == 0 else size(config, first, 1)
        kinds = ["dense" if layer < dense else "sparse" for layer in range(count)]
    if not isinstance(kinds, list) or len(kinds) < count or any(kind != "dense" for kind in kinds[:count]):
        raise UnsupportedError(
            f"configuration: mlp_layer_types {reprlib.repr(kinds)} has layers that are mixtures of experts, which are not "
            "supported; every layer must be 'dense' (by mlp_layer_types, or by first_k_dense_replace)"
        )


def _with_delta_sizes(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[bool, ...]]:
    """Return the configuration with the sizes of the delta attention under transformers' keys, and True for its layers.

    The authors' object has priority, and its lists count layers from 1.

    Raises:
        BundleError: it is no object, or its lists do not name each layer once.
        UnsupportedError: it has an unknown key.
    """
    inner, count = config.get(_INNER), layers(config)
    inner = {} if inner is None else inner
    if not isinstance(inner, Mapping):
        raise BundleError(f"configuration: {_INNER} must be an object, not {reprlib.repr(inner)}")
    for key in inner:
        if key not in (*_DELTA_SIZES, *_PLACES):
            raise UnsupportedError(f"configuration: {_INNER} has the key {reprlib.repr(key)}, which is not supported")
    sizes = {key: inner.get(own, config.get(key, usual)) for own, (key, usual) in _DELTA_SIZES.items()}
    if not set(_PLACES) <= set(inner):
        return {**config, **sizes}, tuple(not layer or layer % _PERIOD != 0 for layer in range(count))
    delta, full = (inner[place] for place in _PLACES)
    both = [*delta, *full] if isinstance(delta, list) and isinstance(full, list) else []
    if not all(type(layer) is int for layer in both) or sorted(both) != list(range(1, count + 1)):
        raise BundleError(
            f"configuration: {' and '.join(_PLACES)} of {_INNER} must name each layer from 1 to {count} once, "
            f"not {reprlib.repr(delta)} and {reprlib.repr(full)}"
        )
    return {**config, **sizes}, tuple(layer + 1 in delta for layer in range(count))


def _delta_attention(g: GraphBuilder, config: Mapping[str, Any], at: str, hf: str, x: str) -> str:
    """Append Kimi Delta Attention and return its output."""
    heads, dim = size(config, "linear_num_heads"), size(config, "linear_head_dim")
    kernel, width = size(config, "linear_conv_kernel_dim", limit=MOST_TAPS), heads * dim

    def linear(name: str, source: str, out: int) -> str:
        return g.linear(f"{at}.{name}", source, weight=f"{hf}.{name}.weight", out=out)

    # The linears that read x stand together, so that they become one operation.
    projected = [linear(f"{part}_proj", x, width) for part in "qkv"]
    step, gate, rate = linear("f_a_proj", x, dim), linear("g_a_proj", x, dim), linear("b_proj", x, heads)
    step, gate = linear("f_b_proj", step, width), linear("g_b_proj", gate, width)
    q, k, v = (
        g.causal_conv(f"{at}.{part}_conv", one, weight=f"{hf}.{part}_conv1d.weight", bias=None, kernel=kernel)
        for part, one in zip("qkv", projected, strict=True)
    )
    delta = g.gated_delta_rule(
        f"{at}.delta",
        q,
        k,
        v,
        rate,
        step,
        key_heads=heads,
        decay=f"{hf}.A_log",
        decay_shape=(1, 1, heads, 1),
        step_bias=f"{hf}.dt_bias",
        decay_by="channel",
    )
    eps = number(config, "rms_norm_eps", 1e-5)
    delta = g.rms_norm(f"{at}.delta_norm", delta, weight=f"{hf}.o_norm.weight", eps=eps, heads=heads)
    gated = g.sigmoid_gate(f"{at}.gated_delta", gate, delta)
    return g.linear(f"{at}.o", gated, weight=f"{hf}.o_proj.weight", out=size(config, "hidden_size"))


class _LatentAttention:
    """Multi-head latent attention without positions.

    Members:
        dim: columns of a head in the state, an even number: keys and values are as wide as the wider of both, with zeros.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.hidden, self.heads = size(config, "hidden_size"), size(config, "num_attention_heads")
        kv_heads = size(config, "num_key_value_heads", self.heads)
        if kv_heads != self.heads:
            raise UnsupportedError(
                f"configuration: num_key_value_heads {kv_heads} is not supported; the latent is expanded to one key and "
                f"value for each of num_attention_heads {self.heads}"
            )
        self.query_rank, self.rank = optional_size(config, "q_lora_rank"), size(config, "kv_lora_rank", 512)
        self.own, self.shared = size(config, "qk_nope_head_dim", 128), size(config, "qk_rope_head_dim", 64)
        self.value, self.bias = size(config, "v_head_dim", 128), flag(config, "attention_bias")
        self.dim = -(-max(self.own + self.shared, self.value) // 2) * 2

    def append(self, g: GraphBuilder, at: str, hf: str, x: str) -> str:
        """Append the attention of a layer and return its output."""
        hf, key = f"{hf}.self_attn", self.own + self.shared

        def linear(name: str, source: str, out: int, *, bias: bool = False) -> str:
            shift = f"{hf}.{name}.bias" if bias else None
            return g.linear(f"{at}.{name}", source, weight=f"{hf}.{name}.weight", bias=shift, out=out)

        def norm(name: str, latent: str) -> str:
            return g.rms_norm(f"{at}.{name}", latent, weight=f"{hf}.{name}.weight", eps=_LATENT_EPS)

        def widened(name: str, rows: str, columns: int) -> str:
            if columns == self.dim:
                return rows
            return g.concat(f"{at}.{name}", rows, heads=self.heads, gaps=(self.dim - columns,))

        latent = linear("kv_a_proj_with_mqa", x, self.rank + self.shared, bias=self.bias)
        if self.query_rank is None:
            q = linear("q_proj", x, self.heads * key)
        else:
            q = norm("q_a_layernorm", linear("q_a_proj", x, self.query_rank, bias=self.bias))
            q = linear("q_b_proj", q, self.heads * key)
        latent, shared = g.split(f"{at}.latent", latent, {"own": self.rank, "shared": self.shared})
        expanded = linear("kv_b_proj", norm("kv_a_layernorm", latent), self.heads * (self.own + self.value))
        k, v = g.split(f"{at}.expanded", expanded, {"k": self.own, "v": self.value}, heads=self.heads)
        k = g.concat(f"{at}.k", k, shared, heads=self.heads, shared=(False, True), gaps=(0, self.dim - key))
        state = KvState(name=f"{at}.kv", kv_heads=self.heads, head_dim=self.dim)
        mixed = g.attention(
            f"{at}.attn",
            widened("q", q, key),
            k,
            widened("v", v, self.value),
            state=state,
            heads=self.heads,
            scale=key**-0.5,
        )
        if self.value < self.dim:
            parts = {"values": self.value, "zeros": self.dim - self.value}
            mixed, _ = g.split(f"{at}.attn_parts", mixed, parts, heads=self.heads)
        return g.linear(
            f"{at}.o",
            mixed,
            weight=f"{hf}.o_proj.weight",
            bias=f"{hf}.o_proj.bias" if self.bias else None,
            out=self.hidden,
        )
