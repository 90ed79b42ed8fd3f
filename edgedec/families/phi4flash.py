"""SambaY (Phi 4 mini flash): half of the layers, the cross decoder, read the memory and the keys and values of two others.

Even layers of the first half are mixers of Mamba 1, and odd ones have attention with a window. The layer after the half, a
mixer, and the next one, attention that sees everything, are followed by the cross decoder: gated memory units, which gate
the output of that mixer's scan, and attention over the keys and values of that one layer. Attention is differential,
without positions: two heads of queries and keys attend to two heads of values side by side, and their difference is taken.

The queries of a pair become two heads of twice the columns, half of them zeros, and its keys and values one head. So each
attention is one operation, and the state has no column twice.

Source: 2507.06607 (SambaY), 2312.00752 (Mamba), 2410.05258 (differential attention); names and defaults are those of the
model's own code for transformers.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from edgedec.errors import BundleError, UnsupportedError
from edgedec.families._builder import GraphBuilder
from edgedec.families._config import flag, head_dim, layers, number, only, size
from edgedec.families._mamba import MOST_TAPS
from edgedec.graph.graph import Graph, KvState

__all__ = ["build"]

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_WINDOW = 2047  # positions
_LAMBDA_EPS = 1e-5  # eps of the pairs' norms, which no setting changes


def build(config: Mapping[str, Any]) -> Graph:
    """Return the graph of a configuration.

    The names of values are ``layers.I.{norm,mixed,attn_out,mlp_norm,gate,up,gated,down,out}``, of a mixer also
    ``layers.I.{in,conv,scan,gated_scan}``, of a gated memory unit ``layers.I.{in,gated_memory}``, of attention
    ``layers.I.{q,attn,difference,pair_norm}``, ``final_norm``, ``logits``.

    Raises:
        BundleError: a size is missing or out of range, or sizes do not fit each other.
        UnsupportedError: a setting is not supported.
    """
    return _SambaY(config).graph()


class _SambaY:
    def __init__(self, config: Mapping[str, Any]) -> None:
        for key, allowed in (("hidden_act", (None, "silu")), ("mb_per_layer", (None, 2)), ("rope_scaling", (None,))):
            only(config, key, allowed)
        self.config, self.g = config, GraphBuilder()
        self.hidden, self.inter = size(config, "hidden_size"), size(config, "intermediate_size")
        self.vocab, self.eps = size(config, "vocab_size"), number(config, "layer_norm_eps", 1e-5)
        self.heads, self.dim = size(config, "num_attention_heads"), head_dim(config)
        self.kv_heads = size(config, "num_key_value_heads", self.heads)
        if self.heads % 2 or self.kv_heads % 2 or self.heads % self.kv_heads:
            raise BundleError(
                f"configuration: num_attention_heads {self.heads} and num_key_value_heads {self.kv_heads} must be even, "
                "and the first a multiple of the second; heads attend in pairs"
            )
        if self.heads * self.dim != self.hidden:
            raise BundleError(f"configuration: {self.heads} heads of {self.dim} are not hidden_size {self.hidden}")
        self.layers = layers(config)
        if self.layers % 4:
            raise UnsupportedError(
                f"configuration: num_hidden_layers {self.layers} is not supported; it must be a multiple of 4, so that the "
                "layer after the first half is a mixer"
            )
        self.half, self.windows = self.layers // 2, _windows(config, self.layers)
        self.inner, self.state = size(config, "mamba_expand", 2) * self.hidden, size(config, "mamba_d_state", 16)
        self.kernel = size(config, "mamba_d_conv", 4, limit=MOST_TAPS)
        auto = config.get("mamba_dt_rank", "auto") == "auto"
        self.rank = -(-self.hidden // 16) if auto else size(config, "mamba_dt_rank")
        self.conv_bias, self.proj_bias = flag(config, "mamba_conv_bias", True), flag(config, "mamba_proj_bias")
        self.mlp_bias = flag(config, "mlp_bias")
        self.memory = ""  # output of the scan that the cross decoder reads
        self.shared: tuple[KvState, str, str] | None = None  # state, keys and values that it reads

    def graph(self) -> Graph:
        g, config = self.g, self.config
        x = g.embed("embed", weight=_EMBEDDING, vocab=self.vocab, width=self.hidden)
        for layer in range(self.layers):
            at, hf = f"layers.{layer}", f"model.layers.{layer}"
            normed = self._norm(f"{at}.norm", x, f"{hf}.input_layernorm")
            mixed = self._attention(layer, at, normed) if layer % 2 else self._memory(layer, at, normed)
            x = self._mlp(at, hf, g.add(f"{at}.attn_out", x, mixed))
        normed = self._norm("final_norm", g.select_rows("wanted", x), "model.final_layernorm")
        tied = flag(config, "tie_word_embeddings", True)
        bias = "lm_head.bias" if flag(config, "lm_head_bias") else None
        return g.graph(
            logits=g.linear("logits", normed, weight=_EMBEDDING if tied else _HEAD, bias=bias, out=self.vocab)
        )

    def _norm(self, name: str, x: str, module: str) -> str:
        return self.g.layer_norm(name, x, weight=f"{module}.weight", bias=f"{module}.bias", eps=self.eps)

    def _linear(self, name: str, x: str, module: str, out: int, bias: bool) -> str:
        return self.g.linear(name, x, weight=f"{module}.weight", bias=f"{module}.bias" if bias else None, out=out)

    def _memory(self, layer: int, at: str, x: str) -> str:
        """Append a mixer, or a gated memory unit of the cross decoder, and return its output."""
        g, hf, inner = self.g, f"model.layers.{layer}.attn", self.inner
        if layer > self.half:
            gate = self._linear(f"{at}.in", x, f"{hf}.in_proj", inner, self.proj_bias)
            gated = g.gated_activation(f"{at}.gated_memory", gate, self.memory, "silu")
            return self._linear(f"{at}.mixed", gated, f"{hf}.out_proj", self.hidden, self.proj_bias)
        both = self._linear(f"{at}.in", x, f"{hf}.in_proj", 2 * inner, self.proj_bias)
        mixed, gate = g.split(f"{at}.in_parts", both, {"x": inner, "gate": inner})
        conv_bias = f"{hf}.conv1d.bias" if self.conv_bias else None
        mixed = g.causal_conv(f"{at}.conv", mixed, weight=f"{hf}.conv1d.weight", bias=conv_bias, kernel=self.kernel)
        inputs = self._linear(f"{at}.inputs", mixed, f"{hf}.x_proj", self.rank + 2 * self.state, False)
        step, b, c = g.split(f"{at}.input_parts", inputs, {"step": self.rank, "b": self.state, "c": self.state})
        step = self._linear(f"{at}.step", step, f"{hf}.dt_proj", inner, False)
        scanned = g.selective_scan(
            f"{at}.scan",
            mixed,
            b,
            c,
            step,
            groups=1,
            decay=f"{hf}.A_log",
            skip=f"{hf}.D",
            step_bias=f"{hf}.dt_proj.bias",
            decay_by="channel",
        )
        if layer == self.half:
            self.memory = scanned
        gated = g.gated_activation(f"{at}.gated_scan", gate, scanned, "silu")
        return self._linear(f"{at}.mixed", gated, f"{hf}.out_proj", self.hidden, self.proj_bias)

    def _attention(self, layer: int, at: str, x: str) -> str:
        """Append differential attention and return its output."""
        g, hf, pairs, dim = self.g, f"model.layers.{layer}.attn", self.heads // 2, self.dim
        own = layer <= self.half + 1
        q = self._linear(f"{at}.q_proj", x, f"{hf}.{'q_proj' if own else 'Wqkv'}", self.hidden, True)
        if own:
            k, v = (
                self._linear(f"{at}.{part}", x, f"{hf}.{part}_proj", self.kv_heads * dim, True) for part in ("k", "v")
            )
            state = KvState(name=f"{at}.kv", kv_heads=self.kv_heads // 2, head_dim=2 * dim, window=self.windows[layer])
            self.shared = state, k, v
        assert self.shared is not None
        state, k, v = self.shared
        first, second = g.split(f"{at}.q_parts", q, {"first": dim, "second": dim}, heads=pairs)
        q = g.concat(f"{at}.q", first, second, heads=pairs, gaps=(2 * dim, 0))
        mixed = g.attention(f"{at}.attn", q, k, v, state=state, heads=self.heads, scale=dim**-0.5)
        inner, start = f"{hf}.inner_cross_attn", 0.8 - 0.6 * math.exp(-0.3 * layer)
        lambdas = f"{inner}.lambda"
        factors = (f"{lambdas}_q1", f"{lambdas}_k1", f"{lambdas}_q2", f"{lambdas}_k2")
        mixed = g.differential_heads(f"{at}.difference", mixed, pairs=pairs, factors=factors, dim=dim, start=start)
        mixed = g.rms_norm(f"{at}.pair_norm", mixed, weight=f"{inner}.subln.weight", eps=_LAMBDA_EPS, heads=pairs)
        mixed = g.scale(f"{at}.pair_norm_scaled", mixed, [1 - start])
        return self._linear(f"{at}.mixed", mixed, f"{hf}.out_proj", self.hidden, True)

    def _mlp(self, at: str, hf: str, x: str) -> str:
        g, bias = self.g, self.mlp_bias
        normed = self._norm(f"{at}.mlp_norm", x, f"{hf}.post_attention_layernorm")
        gate = self._linear(f"{at}.gate", normed, f"{hf}.mlp.gate_proj", self.inter, bias)
        up = self._linear(f"{at}.up", normed, f"{hf}.mlp.up_proj", self.inter, bias)
        gated = g.gated_activation(f"{at}.gated", gate, up, "silu")
        return g.add(f"{at}.out", x, self._linear(f"{at}.down", gated, f"{hf}.mlp.fc2", self.hidden, bias))


def _windows(config: Mapping[str, Any], count: int) -> tuple[int | None, ...]:
    """Return the window of each layer: ``sliding_window`` in odd layers of the first half, where it is one number.

    Saved configurations have it as a list with an entry for each layer.

    Raises:
        BundleError: it is no positive integer, or no list of them.
        UnsupportedError: the list has windows at other layers.
    """
    key, places = "sliding_window", [layer % 2 == 1 and layer < count // 2 for layer in range(count)]
    given = config.get(key)
    if not isinstance(given, list):
        window = size(config, key, _WINDOW)
        return tuple(window if slides else None for slides in places)
    if [one is not None for one in given] != places:
        raise UnsupportedError(
            f"configuration: {key} {reprlib.repr(given)} is not supported; the odd layers of the first half have windows, "
            "and no other"
        )
    return tuple(None if one is None else size({key: one}, key) for one in given)
