"""The decoder of Llama and related families, which differ in the settings of ``DecoderBlock``.

A block has RMS norms, rotary attention with grouped heads, and a gated MLP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from edgedec.errors import BundleError
from edgedec.families._builder import GraphBuilder
from edgedec.families._config import flag, head_dim, layers, number, only, size
from edgedec.families._rope import Rotation, rotation
from edgedec.graph.graph import Graph, KvState
from edgedec.graph.ops import Activation

__all__ = ["DecoderBlock", "build_decoder"]

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, kw_only=True)
class DecoderBlock:
    """The settings of a family's block. The defaults are those of Llama.

    Members:
        activation: activation of the gate.
        default_eps: eps of the norms, if the configuration does not have it.
        tied: True if the head is the embedding, if the configuration does not tell.
        qkv_bias, o_bias, mlp_bias: True if these linears have biases.
        sub_norms: True to normalize the inputs of the linears ``o`` and ``down``.
        post_norms: True to normalize their outputs, before the residual addition.
        head_norms: True to normalize queries and keys, each head separately, before the rotation.
        norm_offset: number added to the weights of all norms.
        embed_scale: factor of the embedding's rows.
        score_scale: factor of attention's scores; None: head_dim ** -0.5.
        score_cap, logits_cap: soft-caps of attention's scores and of the logits.
        rotations: rotation of each layer, None for a layer without; empty: the configuration's rotation in every layer.
        windows: window of each layer, None for a layer that sees everything; empty: no layer has a window.
        output_gate: True if attention's output is multiplied by the logistic function of a gate, which ``q`` computes
            beside each head of queries.
        query_rank: columns that queries are computed from, behind a norm, in place of the layer's input; None: the input.
        mixers: functions that append another part in the place of a layer's attention: (graph, beginning of the names of
            values, of those of weights, normalized input) -> its output, as wide as the input.
    """

    activation: Activation = "silu"
    default_eps: float = 1e-6
    tied: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    sub_norms: bool = False
    post_norms: bool = False
    head_norms: bool = False
    norm_offset: float = 0.0
    embed_scale: float = 1.0
    score_scale: float | None = None
    score_cap: float | None = None
    logits_cap: float | None = None
    rotations: tuple[Rotation | None, ...] = ()
    windows: tuple[int | None, ...] = ()
    output_gate: bool = False
    query_rank: int | None = None
    mixers: Mapping[int, Callable[[GraphBuilder, str, str, str], str]] = field(default_factory=dict)


def build_decoder(config: Mapping[str, Any], block: DecoderBlock) -> Graph:
    """Build the graph of a configuration.

    The names of values are ``layers.I.{attn_norm,q,k,v,attn,o,attn_out,mlp_norm,gate,up,gated,down,out}``, ``final_norm``,
    ``logits``. With head norms also ``layers.I.{q,k}_norm``, with sub-norms ``layers.I.{attn,ffn}_sub_norm``, with
    post-norms ``layers.I.{attn,ffn}_post_norm``, with an output gate ``layers.I.qg_parts.{q,gate}`` and
    ``layers.I.attn_gated``, with a query rank ``layers.I.{q_low,q_low_norm}``.

    Raises:
        BundleError: a size is missing or out of range, or sizes do not fit each other.
        UnsupportedError: the block does not support a setting of the configuration.
    """
    return _Decoder(config, block).graph()


class _Decoder:
    def __init__(self, config: Mapping[str, Any], block: DecoderBlock) -> None:
        self.block, self.g = block, GraphBuilder()
        self.hidden, self.inter = size(config, "hidden_size"), size(config, "intermediate_size")
        self.heads = size(config, "num_attention_heads")
        self.kv_heads = size(config, "num_key_value_heads", self.heads)
        self.vocab = size(config, "vocab_size")
        self.eps = number(config, "rms_norm_eps", block.default_eps)
        self.head_dim, self.layers = head_dim(config), layers(config)
        if self.heads % self.kv_heads:
            raise BundleError(
                f"configuration: {self.heads} heads are not a multiple of num_key_value_heads {self.kv_heads}"
            )
        if block.sub_norms and self.heads * self.head_dim != self.hidden:
            raise BundleError(
                f"configuration: {self.heads} heads of {self.head_dim} are not hidden_size {self.hidden}, "
                "as the sub-norm needs"
            )
        if not block.windows:
            only(config, "sliding_window", (None,))
        self.windows = block.windows or (None,) * self.layers
        self.rotations = block.rotations or (rotation(config),) * self.layers
        interleaved = flag(config, "rope_interleaved")
        self.layout: Literal["half", "interleaved"] = "interleaved" if interleaved else "half"
        self.tied = flag(config, "tie_word_embeddings", block.tied)

    def graph(self) -> Graph:
        g, scale = self.g, self.block.embed_scale
        x = g.embed("embed", weight=_EMBEDDING, vocab=self.vocab, width=self.hidden, scale=scale)
        for layer in range(self.layers):
            x = self._mlp(layer, self._mixed(layer, x))
        # Rows are selected before the norm and the head, because a prefill needs the logits of one row only.
        normed = self._norm("final_norm", g.select_rows("wanted", x), "model.norm")
        weight = _EMBEDDING if self.tied else _HEAD
        cap = self.block.logits_cap
        return g.graph(logits=g.linear("logits", normed, weight=weight, out=self.vocab, soft_cap=cap))

    def _norm(self, name: str, x: str, module: str, heads: int = 1) -> str:
        offset = self.block.norm_offset
        return self.g.rms_norm(name, x, weight=f"{module}.weight", eps=self.eps, heads=heads, offset=offset)

    def _linear(self, name: str, x: str, module: str, out: int, bias: bool) -> str:
        return self.g.linear(name, x, weight=f"{module}.weight", bias=f"{module}.bias" if bias else None, out=out)

    def _mixed(self, layer: int, x: str) -> str:
        """Append attention, or what stands in its place, and the residual addition."""
        g, at, hf = self.g, f"layers.{layer}", f"model.layers.{layer}"
        normed = self._norm(f"{at}.attn_norm", x, f"{hf}.input_layernorm")
        mixer = self.block.mixers.get(layer)
        out = self._attention(layer, normed) if mixer is None else mixer(g, at, hf, normed)
        if self.block.post_norms:
            out = self._norm(f"{at}.attn_post_norm", out, f"{hf}.post_attention_layernorm")
        return g.add(f"{at}.attn_out", x, out)

    def _attention(self, layer: int, normed: str) -> str:
        g, block, at, hf = self.g, self.block, f"layers.{layer}", f"model.layers.{layer}"
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        gate = ""
        if block.output_gate:
            both = self._linear(f"{at}.qg", normed, f"{hf}.self_attn.q_proj", 2 * width, block.qkv_bias)
            q, gate = g.split(f"{at}.qg_parts", both, {"q": self.head_dim, "gate": self.head_dim}, heads=self.heads)
        elif block.query_rank:
            q = self._linear(f"{at}.q_low", normed, f"{hf}.self_attn.q_proj", block.query_rank, block.qkv_bias)
        else:
            q = self._linear(f"{at}.q_proj", normed, f"{hf}.self_attn.q_proj", width, block.qkv_bias)
        k = self._linear(f"{at}.k_proj", normed, f"{hf}.self_attn.k_proj", kv_width, block.qkv_bias)
        v = self._linear(f"{at}.v", normed, f"{hf}.self_attn.v_proj", kv_width, block.qkv_bias)
        if block.query_rank:
            q = self._norm(f"{at}.q_low_norm", q, f"{hf}.self_attn.inter_norm")
            q = self._linear(f"{at}.q_proj", q, f"{hf}.self_attn.wq", width, block.qkv_bias)
        if block.head_norms:
            q = self._norm(f"{at}.q_norm", q, f"{hf}.self_attn.q_norm", self.heads)
            k = self._norm(f"{at}.k_norm", k, f"{hf}.self_attn.k_norm", self.kv_heads)
        scale = self.head_dim**-0.5 if block.score_scale is None else block.score_scale
        turn = self.rotations[layer]
        if turn is not None:
            magnitude = turn.magnitude
            if (
                2 * len(turn.frequencies) == self.head_dim
            ):  # the magnitude scales all columns, so the scores can include it
                scale, magnitude = scale * magnitude**2, 1.0
            q, k = (
                g.rope(
                    f"{at}.{part}",
                    rows,
                    head_dim=self.head_dim,
                    layout=self.layout,
                    inverse_frequencies=turn.frequencies,
                    magnitude=magnitude,
                )
                for part, rows in (("q", q), ("k", k))
            )
        state = KvState(name=f"{at}.kv", kv_heads=self.kv_heads, head_dim=self.head_dim, window=self.windows[layer])
        mixed = g.attention(f"{at}.attn", q, k, v, state=state, heads=self.heads, scale=scale, soft_cap=block.score_cap)
        if block.sub_norms:
            mixed = self._norm(f"{at}.attn_sub_norm", mixed, f"{hf}.self_attn.attn_sub_norm")
        if block.output_gate:
            mixed = g.sigmoid_gate(f"{at}.attn_gated", gate, mixed)
        return self._linear(f"{at}.o", mixed, f"{hf}.self_attn.o_proj", self.hidden, block.o_bias)

    def _mlp(self, layer: int, x: str) -> str:
        g, block, at, hf = self.g, self.block, f"layers.{layer}", f"model.layers.{layer}"
        before = "pre_feedforward_layernorm" if block.post_norms else "post_attention_layernorm"
        normed = self._norm(f"{at}.mlp_norm", x, f"{hf}.{before}")
        gate = self._linear(f"{at}.gate", normed, f"{hf}.mlp.gate_proj", self.inter, block.mlp_bias)
        up = self._linear(f"{at}.up", normed, f"{hf}.mlp.up_proj", self.inter, block.mlp_bias)
        gated = g.gated_activation(f"{at}.gated", gate, up, block.activation)
        if block.sub_norms:
            gated = self._norm(f"{at}.ffn_sub_norm", gated, f"{hf}.mlp.ffn_sub_norm")
        out = self._linear(f"{at}.down", gated, f"{hf}.mlp.down_proj", self.hidden, block.mlp_bias)
        if block.post_norms:
            out = self._norm(f"{at}.ffn_post_norm", out, f"{hf}.post_feedforward_layernorm")
        return g.add(f"{at}.out", x, out)
