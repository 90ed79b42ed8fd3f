"""Convert llama.cpp's architectures to Hugging Face configurations.

The two differ in names, in the rows of q and k, which llama.cpp stores as neighbours if it rotates neighbours, in norms of
Gemma and Qwen 3.5, which hold 1 + weight, in long-context rotations, which may be tensors of factors, in packed matrices,
and in delta nets (``delta_net``).

Source: ``llama-arch.cpp`` and ``models/`` of llama.cpp, and its ``conversion/``, which writes these files; ``src/llama.cpp``
of bitnet.cpp's fork for ``bitnet-b1.58``, whose graph has a squared ReLU where that of ``bitnet`` has a SiLU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.families import REFUSED
from edgedec.quantize.readers.gguf.delta_net import delta_net_keys
from edgedec.quantize.readers.gguf.header import GgufHeader
from edgedec.quantize.readers.gguf.keys import ArchitectureKeys
from edgedec.quantize.readers.untrusted import shown

__all__ = [
    "ROPE_FACTORS",
    "Architecture",
    "RopeFactors",
    "architecture",
    "configuration",
]

# Tensors of rotation factors: for every context, for contexts up to the original one, and for longer contexts.
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
RopeFactors = Mapping[str, NDArray[np.float32]]

_MAX_LAYERS = 1 << 12  # limit of the families, because some configurations list all layers
_Config = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """An architecture of llama.cpp.

    Members:
        model_type: name of the family.
        neighbours: rotary pairs of q and k rows are neighbours (2i, 2i+1), not halves of a head.
        post_norms: there are norms after attention and MLP.
        partial: only a part of each head may be rotated.
        gated_up: ``ffn_up`` holds the gate's rows, followed by its own.
        delta_nets: some layers are gated delta nets (``delta_net``).
        more: function that returns the keys of the configuration besides the common ones.
    """

    model_type: str
    neighbours: bool = False
    post_norms: bool = False
    partial: bool = False
    gated_up: bool = False
    delta_nets: bool = False
    more: Callable[[ArchitectureKeys, _Config], _Config] = lambda _reader, _config: {}


def _short(value: float) -> float:
    """Return a float32 of the file as the shortest decimal number that it represents."""
    return float(f"{value:.7g}")


def _biases(reader: ArchitectureKeys, config: _Config) -> _Config:
    """Return whether attention (all four projections) and MLP have biases, and Llama's activation."""
    return {
        "attention_bias": reader.tensor("blk.0.attn_output.bias"),
        "mlp_bias": reader.tensor("blk.0.ffn_down.bias"),
        "hidden_act": "silu",
    }


def _qwen(reader: ArchitectureKeys, config: _Config) -> _Config:
    return {"hidden_act": "silu", "use_sliding_window": False}


def _bitnet(reader: ArchitectureKeys, config: _Config) -> _Config:
    """Return silu and a tied head, which llama.cpp's graph always has."""
    return {"hidden_act": "silu", "tie_word_embeddings": True}


def _bitnet_b158(reader: ArchitectureKeys, config: _Config) -> _Config:
    return {"hidden_act": "relu2", "tie_word_embeddings": True}


def _phi3(reader: ArchitectureKeys, config: _Config) -> _Config:
    """Return the window of the model, which llama.cpp itself ignores (0 means no window), and the original context."""
    keys: _Config = {
        "hidden_act": "silu",
        "sliding_window": reader.integer("attention.sliding_window", 0, least=0) or None,
    }
    original = reader.integer("rope.scaling.original_context_length", config["max_position_embeddings"])
    return keys | {"original_max_position_embeddings": original}


def _gemma(reader: ArchitectureKeys, config: _Config) -> _Config:
    return {"hidden_act": "gelu_pytorch_tanh", "rms_norm_offset": 0, "tie_word_embeddings": True}


def _query_scalar(config: _Config, layers_27b: int) -> float:
    """Return the scale of queries. Only the 27B model, which its layers identify, uses model width / heads."""
    if config["num_hidden_layers"] == layers_27b:
        return float(config["hidden_size"] / config["num_attention_heads"])
    return float(config["head_dim"])


def _gemma2(reader: ArchitectureKeys, config: _Config) -> _Config:
    if reader.integer("attention.sliding_window_pattern", 2) != 2:
        raise UnsupportedError(
            f"{reader.header.path}: windows in other than every second layer of a gemma2 are not read"
        )
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_offset": 0,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": _query_scalar(config, 46),
        "sliding_window": reader.integer("attention.sliding_window", 4096),
        "attn_logit_softcapping": reader.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": reader.number("final_logit_softcapping", 30.0),
    }


def _gemma3(reader: ArchitectureKeys, config: _Config) -> _Config:
    keys = {
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_offset": 0,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": _query_scalar(config, 62),
        "rope_local_base_freq": _short(reader.number("rope.freq_base_swa", 10000.0)),
        "sliding_window_pattern": reader.integer("attention.sliding_window_pattern", 6),
    }
    if reader.has("final_logit_softcapping"):
        keys["final_logit_softcapping"] = reader.number("final_logit_softcapping")
    if reader.has("attention.sliding_window"):
        keys["sliding_window"] = reader.integer("attention.sliding_window")
    else:
        keys["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    return keys


def _smollm3(reader: ArchitectureKeys, config: _Config) -> _Config:
    return {"hidden_act": "silu", "no_rope_layer_interval": 4, "attention_bias": False, "mlp_bias": False}


def _qwen35(reader: ArchitectureKeys, config: _Config) -> _Config:
    """Return the sizes of the delta nets, and norms that hold 1 + weight.

    The key ``rope.dimension_sections`` is left out: it divides the rotated columns between the coordinates of an image,
    which are equal for text.
    """
    keys = delta_net_keys(reader, config)
    first = keys["layer_types"].index("full_attention") if "full_attention" in keys["layer_types"] else 0
    return keys | {
        "hidden_act": "silu",
        "rms_norm_offset": 0,
        "attention_bias": reader.tensor(f"blk.{first}.attn_q.bias"),
        "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),  # the family's default is not llama.cpp's
    }


_ARCHITECTURES = {
    "llama": Architecture(model_type="llama", neighbours=True, more=_biases),
    "qwen2": Architecture(model_type="qwen2", more=_qwen),
    "qwen3": Architecture(model_type="qwen3", more=_qwen),
    "bitnet": Architecture(model_type="bitnet", more=_bitnet),
    "bitnet-b1.58": Architecture(model_type="bitnet", more=_bitnet_b158),
    "phi3": Architecture(model_type="phi3", partial=True, gated_up=True, more=_phi3),
    "gemma": Architecture(model_type="gemma", more=_gemma),
    "gemma2": Architecture(model_type="gemma2", post_norms=True, more=_gemma2),
    "gemma3": Architecture(model_type="gemma3_text", post_norms=True, more=_gemma3),
    "smollm3": Architecture(model_type="smollm3", neighbours=True, more=_smollm3),
    "qwen35": Architecture(model_type="qwen3_5_text", partial=True, delta_nets=True, more=_qwen35),
}

_REFUSED = {"qwen35moe": REFUSED["qwen3_5_moe"]}


def architecture(header: GgufHeader) -> Architecture:
    """Return the architecture of a file.

    Raises:
        UnsupportedError: edgedec does not support the architecture, or the file is not a language model.
    """
    name = header.metadata.get("general.architecture")
    known = _ARCHITECTURES.get(name) if isinstance(name, str) else None
    if known is None:
        reason = f": {_REFUSED[name]}" if isinstance(name, str) and name in _REFUSED else ""
        raise UnsupportedError(
            f"{header.path}: general.architecture {shown(name)} is not read{reason}; known: {', '.join(_ARCHITECTURES)}"
        )
    return known


def configuration(header: GgufHeader, known: Architecture, rope_factors: RopeFactors) -> _Config:
    """Return the equivalent ``config.json``. ``rope_factors`` holds the tensors of ``ROPE_FACTORS`` that the file has.

    Raises:
        BundleError: a key is missing or invalid.
        UnsupportedError: the model has experts, values of another width than keys, or a partial rotation that its
            architecture does not have.
    """
    name = header.metadata["general.architecture"]
    assert isinstance(name, str)
    reader = ArchitectureKeys(header, name)
    if reader.integer("expert_count", 0, least=0):
        raise UnsupportedError(f"{header.path}: {name}.expert_count: models with experts are not read")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise BundleError(
            f"{header.path} has no matrix token_embd.weight; it holds only a vocabulary, or a part of a model"
        )
    hidden, heads = reader.integer("embedding_length"), reader.integer("attention.head_count")
    head_dim = reader.integer("attention.key_length", max(1, hidden // heads))
    if head_dim % 2:
        raise BundleError(f"{header.path}: {name}: heads of {head_dim} columns cannot be rotated in pairs of columns")
    turned = reader.integer("rope.dimension_count", head_dim)
    for key in ("attention.value_length", "rope.dimension_count")[: 1 if known.partial else 2]:
        if reader.integer(key, head_dim) != head_dim:
            raise UnsupportedError(
                f"{header.path}: {name}.{key} other than the {head_dim} columns of a head is not read"
            )
    config: _Config = {
        "model_type": known.model_type,
        "hidden_size": hidden,
        "intermediate_size": reader.integer("feed_forward_length"),
        "num_hidden_layers": reader.integer("block_count", most=_MAX_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": reader.integer("context_length"),
        "rms_norm_eps": _short(reader.number("attention.layer_norm_rms_epsilon")),
        "rope_theta": _short(reader.number("rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }
    if turned != head_dim:
        config["partial_rotary_factor"] = _share(reader, turned, head_dim)
    config |= known.more(reader, config)
    scaling = _rope_scaling(reader, config, turned, rope_factors)
    return config | {"rope_scaling": scaling} if scaling else config


def _share(reader: ArchitectureKeys, turned: int, head_dim: int) -> float:
    """Return the share of a head's columns that are rotated, rounded up so that the product is at least ``turned``."""
    if turned > head_dim or turned % 2:
        raise BundleError(
            f"{reader.header.path}: {reader.name}.rope.dimension_count must be an even number up to {head_dim}, not {turned}"
        )
    share = turned / head_dim
    return share if int(head_dim * share) == turned else math.nextafter(share, 1)


def _rope_scaling(reader: ArchitectureKeys, config: _Config, turned: int, factors: RopeFactors) -> _Config | None:
    """Return ``rope_scaling``, or None if there is none. ``turned`` columns of a head are rotated."""
    path, kind = reader.header.path, reader.header.metadata.get(f"{reader.name}.rope.scaling.type", "none")
    if not isinstance(kind, str):
        raise BundleError(f"{path}: {reader.name}.rope.scaling.type must be text, not {shown(kind)}")
    factor = _short(reader.number("rope.scaling.factor", 1.0))
    if factors and (kind == "yarn" or (kind == "linear" and factor != 1)):
        raise UnsupportedError(
            f"{path}: {min(factors)!r} together with {reader.name}.rope.scaling.type {kind} is not read"
        )
    for name, values in factors.items():
        if values.shape != (turned // 2,) or not np.isfinite(values).all() or (values <= 0).any():
            raise BundleError(f"{path}: tensor {name!r} must be {turned // 2} positive numbers, not {values.shape}")
    everywhere, short, long = (factors.get(name) for name in ROPE_FACTORS)
    if everywhere is not None:
        return _by_factors(config, turned, everywhere)
    if short is not None and long is not None:
        return {
            "rope_type": "longrope",
            "short_factor": [float(one) for one in short],
            "long_factor": [float(one) for one in long],
            "attention_factor": _short(reader.number("rope.scaling.attn_factor", 1.0)),
            "original_max_position_embeddings": reader.integer("rope.scaling.original_context_length"),
        }
    if factors:
        raise BundleError(f"{path}: tensor {min(factors)!r} needs the one for shorter or longer contexts as well")
    if kind == "linear":
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


def _by_factors(config: _Config, turned: int, factors: NDArray[np.float32]) -> _Config:
    """Return Llama 3.1's scaling if the factors match it, otherwise the factors themselves."""
    plain = config["rope_theta"] ** (-2 * np.arange(turned // 2) / turned)
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
