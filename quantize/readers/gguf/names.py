"""Translate names of tensors between llama.cpp and Hugging Face."""

from __future__ import annotations

import re
from collections.abc import Mapping

from edgedec.errors import UnsupportedError

__all__ = ["gguf_name", "huggingface_names"]

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = re.compile(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)", re.ASCII)
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
# Packed matrices, which hold the rows of several matrices one after the other.
_QKV = ("attn_q", "attn_k", "attn_v")
_GATED_UP = ("ffn_gate", "ffn_up")


def _parts(post_norms: bool) -> Mapping[str, str]:
    """Return a mapping from llama.cpp's names of the parts of a layer to Hugging Face's."""
    return _PARTS | _POST_NORMS if post_norms else _PARTS


def huggingface_names(name: str, *, post_norms: bool = False, gated_up: bool = False) -> tuple[str, ...]:
    """Return the names of the matrices in a tensor of a file, in the order of their rows; empty: no family has it.

    Args:
        post_norms: the model has norms after attention and MLP.
        gated_up: ``ffn_up`` holds the gate's rows, followed by its own.
    """
    stem, _, parameter = name.rpartition(".")
    if stem in _TOP and parameter == "weight":
        return (f"{_TOP[stem]}.weight",)
    match = _BLOCK.fullmatch(name)
    if not match or match[1] != str(int(match[1])):
        return ()
    layer, part, parameter = match.groups()
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
