"""llama.cpp's architectures as Hugging Face configurations and names.

What differs: names; q's and k's rows, which llama.cpp keeps as neighbours where it rotates neighbours; Gemma's norms, which
hold 1 + weight; long-context rotations, which may be a tensor of factors.

Source: ``llama-arch.cpp`` and ``models/`` of llama.cpp, and its ``conversion/``, which writes these files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.gguf_header import GgufHeader, Value
from edgedec.quantize.readers.untrusted import shown

__all__ = ["ROPE_FACTORS", "Architecture", "architecture", "configuration", "gguf_name", "huggingface_name"]

ROPE_FACTORS = "rope_freqs.weight"

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

_Config = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Members:
    model_type: the family's name.
    neighbours: q and k rows lie as neighbours (2i, 2i+1), not as halves of a head.
    post_norms: there are norms behind attention and MLP.
    more: what its configuration has besides the common keys.
    """

    model_type: str
    neighbours: bool = False
    post_norms: bool = False
    more: Callable[[_Reader, _Config], _Config] = lambda _reader, _config: {}


class _Reader:
    """Metadata under ``general.architecture``, checked as it is read."""

    def __init__(self, header: GgufHeader, name: str) -> None:
        self.header, self.name = header, name

    def _get(self, key: str) -> tuple[str, Value | None]:
        full = f"{self.name}.{key}"
        return full, self.header.metadata.get(full)

    def integer(self, key: str, default: int | None = None) -> int:
        full, value = self._get(key)
        if isinstance(value, np.ndarray):  # one for each layer
            if value.size and (value == value[0]).all():
                value = value[0].item()
            else:
                raise UnsupportedError(f"{self.header.path}: {full} differs between layers, which no family has")
        value = default if value is None else value
        if type(value) is not int or not 0 < value < 1 << 31:
            raise BundleError(f"{self.header.path}: {full} must be a positive integer, not {shown(value)}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        full, value = self._get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise BundleError(f"{self.header.path}: {full} must be a positive number, not {shown(value)}")
        return float(value)

    def has(self, key: str) -> bool:
        return self._get(key)[1] is not None

    def tensor(self, name: str) -> bool:
        return name in self.header.tensors


def _short(value: float) -> float:
    """A float32 of the file as the number that somebody once wrote."""
    return float(f"{value:.7g}")


def _biases(reader: _Reader, config: _Config) -> _Config:
    """Llama's: all four projections, and the MLP."""
    return {
        "attention_bias": reader.tensor("blk.0.attn_output.bias"),
        "mlp_bias": reader.tensor("blk.0.ffn_down.bias"),
        "hidden_act": "silu",
    }


def _qwen(reader: _Reader, config: _Config) -> _Config:
    return {"hidden_act": "silu", "use_sliding_window": False}


def _bitnet(reader: _Reader, config: _Config) -> _Config:
    """llama.cpp's graph has silu and a tied head, whatever the file says."""
    return {"hidden_act": "silu", "tie_word_embeddings": True}


def _gemma(reader: _Reader, config: _Config) -> _Config:
    return {"hidden_act": "gelu_pytorch_tanh", "rms_norm_offset": 0, "tie_word_embeddings": True}


def _query_scalar(config: _Config, layers_27b: int) -> float:
    """Only the 27B model scales by the width of the model over the heads; llama.cpp knows it by its layers."""
    if config["num_hidden_layers"] == layers_27b:
        return float(config["hidden_size"] / config["num_attention_heads"])
    return float(config["head_dim"])


def _gemma2(reader: _Reader, config: _Config) -> _Config:
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_offset": 0,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": _query_scalar(config, 46),
        "sliding_window": reader.integer("attention.sliding_window", 4096),
        "attn_logit_softcapping": reader.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": reader.number("final_logit_softcapping", 30.0),
    }


def _gemma3(reader: _Reader, config: _Config) -> _Config:
    found = {
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_offset": 0,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": _query_scalar(config, 62),
        "rope_local_base_freq": _short(reader.number("rope.freq_base_swa", 10000.0)),
        "sliding_window_pattern": reader.integer("attention.sliding_window_pattern", 6),
    }
    if reader.has("final_logit_softcapping"):
        found["final_logit_softcapping"] = reader.number("final_logit_softcapping")
    if reader.has("attention.sliding_window"):
        found["sliding_window"] = reader.integer("attention.sliding_window")
    else:
        found["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    return found


def _smollm3(reader: _Reader, config: _Config) -> _Config:
    return {"hidden_act": "silu", "no_rope_layer_interval": 4, "attention_bias": False, "mlp_bias": False}


_ARCHITECTURES = {
    "llama": Architecture(model_type="llama", neighbours=True, more=_biases),
    "qwen2": Architecture(model_type="qwen2", more=_qwen),
    "qwen3": Architecture(model_type="qwen3", more=_qwen),
    "bitnet": Architecture(model_type="bitnet", more=_bitnet),
    "gemma": Architecture(model_type="gemma", more=_gemma),
    "gemma2": Architecture(model_type="gemma2", post_norms=True, more=_gemma2),
    "gemma3": Architecture(model_type="gemma3_text", post_norms=True, more=_gemma3),
    "smollm3": Architecture(model_type="smollm3", neighbours=True, more=_smollm3),
}


def architecture(header: GgufHeader) -> Architecture:
    """Raises:
    UnsupportedError: llama.cpp has it, edgedec has not, or it is no language model.
    """
    name = header.metadata.get("general.architecture")
    found = _ARCHITECTURES.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnsupportedError(
            f"{header.path}: general.architecture {shown(name)} is not read; known: {', '.join(_ARCHITECTURES)}"
        )
    return found


def huggingface_name(known: Architecture, name: str) -> str | None:
    """Of a tensor; None for one that no family has."""
    stem, _, parameter = name.rpartition(".")
    if stem in _TOP and parameter == "weight":
        return f"{_TOP[stem]}.weight"
    match = _BLOCK.fullmatch(name)
    if not match:
        return None
    layer, part, parameter = match.groups()
    found = (_POST_NORMS.get(part) if known.post_norms else None) or _PARTS.get(part)
    return f"model.layers.{int(layer)}.{found}.{parameter}" if found and layer == str(int(layer)) else None


def gguf_name(name: str) -> str:
    """The inverse of ``huggingface_name`` for families without post-norms.

    Raises:
        UnsupportedError: llama.cpp has no name for it.
    """
    stem, _, parameter = name.rpartition(".")
    if stem in _TOP.values():
        return f"{next(ours for ours, theirs in _TOP.items() if theirs == stem)}.{parameter}"
    *_, layer, part = stem.split(".", 3) if stem.count(".") > 2 else ("", stem)
    found = next((ours for ours, theirs in _PARTS.items() if theirs == part), None)
    if found is None:
        raise UnsupportedError(f"tensor {name} has no name in llama.cpp's files")
    return f"blk.{layer}.{found}.{parameter}"


def configuration(header: GgufHeader, known: Architecture, rope_factors: NDArray[np.float32] | None) -> _Config:
    """What ``config.json`` would say. ``rope_factors``: the tensor of that name, where there is one.

    Raises:
        BundleError: a key is missing or impossible.
        UnsupportedError: experts, values of another width than keys, a rotation of a part of each head.
    """
    name = header.metadata["general.architecture"]
    assert isinstance(name, str)
    reader = _Reader(header, name)
    if header.metadata.get(f"{name}.expert_count", 0) not in (0, False):
        raise UnsupportedError(f"{header.path}: {name}.expert_count: models with experts are not read")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise BundleError(
            f"{header.path}: has no matrix token_embd.weight; it holds a vocabulary only, or a part of a model"
        )
    hidden, heads = reader.integer("embedding_length"), reader.integer("attention.head_count")
    head_dim = reader.integer("attention.key_length", max(1, hidden // heads))
    if head_dim % 2:
        raise BundleError(f"{header.path}: {name}: heads of {head_dim} columns cannot be rotated, which goes in pairs")
    for key in ("attention.value_length", "rope.dimension_count"):
        if reader.integer(key, head_dim) != head_dim:
            raise UnsupportedError(
                f"{header.path}: {name}.{key} other than the {head_dim} columns of a head is not read"
            )
    config: _Config = {
        "model_type": known.model_type,
        "hidden_size": hidden,
        "intermediate_size": reader.integer("feed_forward_length"),
        "num_hidden_layers": reader.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": reader.integer("context_length"),
        "rms_norm_eps": _short(reader.number("attention.layer_norm_rms_epsilon")),
        "rope_theta": _short(reader.number("rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }
    config |= known.more(reader, config)
    scaling = _rope_scaling(reader, config, rope_factors)
    return config | {"rope_scaling": scaling} if scaling else config


def _rope_scaling(reader: _Reader, config: _Config, factors: NDArray[np.float32] | None) -> _Config | None:
    path, kind = reader.header.path, reader.header.metadata.get(f"{reader.name}.rope.scaling.type", "none")
    if factors is not None:
        return _by_factors(reader, config, factors)
    if kind == "linear":
        factor = _short(reader.number("rope.scaling.factor", 1.0))
        return {"rope_type": "linear", "factor": factor} if factor != 1 else None
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "factor": _short(reader.number("rope.scaling.factor")),
            "original_max_position_embeddings": reader.integer("rope.scaling.original_context_length"),
        }
    if kind != "none":
        raise UnsupportedError(
            f"{path}: {reader.name}.rope.scaling.type {shown(kind)} is not read; known: none, linear, yarn"
        )
    return None


def _by_factors(reader: _Reader, config: _Config, factors: NDArray[np.float32]) -> _Config:
    """Llama 3.1's scaling, if the factors are its; else the factors themselves."""
    head_dim, theta = config["head_dim"], config["rope_theta"]
    if factors.shape != (head_dim // 2,) or not np.isfinite(factors).all() or (factors <= 0).any():
        raise BundleError(
            f"{reader.header.path}: tensor {ROPE_FACTORS!r} must be {head_dim // 2} positive numbers, "
            f"not {factors.shape}"
        )
    plain = theta ** (-2 * np.arange(head_dim // 2) / head_dim)
    slowest, low, high, original = _short(float(factors.max())), 1.0, 4.0, 8192
    keep = np.clip((original * plain / (2 * np.pi) - low) / (high - low), 0, 1)
    if np.allclose(1 / (keep + (1 - keep) / slowest), factors, rtol=1e-4):
        return {
            "rope_type": "llama3",
            "factor": slowest,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }
    listed = [float(factor) for factor in factors]
    return {
        "rope_type": "longrope",
        "short_factor": listed,
        "long_factor": listed,
        "attention_factor": 1.0,
        "original_max_position_embeddings": config["max_position_embeddings"],
    }
