"""Translate names of tensors between llama.cpp and Hugging Face."""

from __future__ import annotations

import re
from collections.abc import Mapping

from edgedec.errors import UnsupportedError

__all__ = ["gguf_name", "huggingface_names", "layer_part"]

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,3})\.(.+)", re.ASCII)
_PART = re.compile(r"(\w+)\.(weight|bias)", re.ASCII)
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_sub_norm": "self_attn.attn_sub_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_sub_norm": "mlp.ffn_sub_norm",
}
_POST_NORMS = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# The parts of Qwen 3.5's layers that have other names; most of them belong to its delta nets.
_DELTA_NETS = {
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
}
# Packed matrices, which hold the rows of several matrices one after the other.
_QKV = ("attn_q", "attn_k", "attn_v")
_GATED_UP = ("ffn_gate", "ffn_up")


def _parts(post_norms: bool) -> Mapping[str, str]:
    """Return a mapping from llama.cpp's names of the parts of a layer to Hugging Face's."""
    return _PARTS | _POST_NORMS if post_norms else _PARTS


def layer_part(name: str) -> tuple[int, str] | None:
    """Return the layer of a tensor of a file and the rest of its name, or None if it belongs to no layer."""
    match = _LAYER.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def huggingface_names(
    name: str, *, post_norms: bool = False, gated_up: bool = False, delta_nets: bool = False
) -> tuple[str, ...]:
    """Return the names of the matrices in a tensor of a file, in the order of their rows; empty: no family has it.

    Args:
        post_norms: the model has norms after attention and MLP.
        gated_up: ``ffn_up`` holds the gate's rows, followed by its own.
        delta_nets: the model has gated delta nets, and its names.
    """
    stem, _, parameter = name.rpartition(".")
    if stem in _TOP and parameter == "weight":
        return (f"{_TOP[stem]}.weight",)
    found = layer_part(name)
    if found is None:
        return ()
    layer, rest = found
    if delta_nets and rest in _DELTA_NETS:
        return (f"model.layers.{layer}.{_DELTA_NETS[rest]}",)
    match = _PART.fullmatch(rest)
    if not match:
        return ()
    part, parameter = match.groups()
    inner = _QKV if part == "attn_qkv" else _GATED_UP if part == "ffn_up" and gated_up else (part,)
    known = _parts(post_norms)
    if not all(one in known for one in inner):
        return ()
    return tuple(f"model.layers.{layer}.{known[one]}.{parameter}" for one in inner)


def gguf_name(name: str, *, post_norms: bool = False) -> str:
    """Return llama.cpp's name of a tensor with a Hugging Face name.

    Raises:
        UnsupportedError: llama.cpp has no name for it.
    """
    stem, _, parameter = name.rpartition(".")
    for ours, theirs in _TOP.items():
        if stem == theirs:
            return f"{ours}.{parameter}"
    *_, layer, part = stem.split(".", 3) if stem.count(".") > 2 else ("", stem)
    own = next((ours for ours, theirs in _parts(post_norms).items() if theirs == part), None)
    if own is None:
        raise UnsupportedError(f"tensor {name} has no name in llama.cpp's files")
    return f"blk.{layer}.{own}.{parameter}"
