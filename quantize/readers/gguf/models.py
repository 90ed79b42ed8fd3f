"""Convert llama.cpp's architectures to Hugging Face configurations.

The two differ in names, in the rows of q and k, which llama.cpp stores as neighbours if it rotates neighbours, in norms of
Gemma and Qwen 3.5, which hold 1 + weight, in long-context rotations, which may be tensors of factors, in packed matrices,
and in delta nets (``delta_net``).

Source: ``llama-arch.cpp`` and ``models/`` of llama.cpp, and its ``conversion/``, which writes these files; ``src/llama.cpp``
of bitnet.cpp's fork for ``bitnet-b1.58``, whose graph has a squared ReLU where that of ``bitnet`` has a SiLU.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edgedec.errors import BundleError, UnsupportedError
from edgedec.families import REFUSED
from edgedec.quantize.readers.gguf.delta_net import STEP, delta_net_keys
from edgedec.quantize.readers.gguf.header import GgufHeader
from edgedec.quantize.readers.gguf.keys import ArchitectureKeys, check_general, short
from edgedec.quantize.readers.gguf.names import layer_part
from edgedec.quantize.readers.gguf.rotation import ROPE_FACTORS, RopeFactors, rope_scaling, window_rotation
from edgedec.quantize.readers.untrusted import shown

__all__ = [
    "ARCHITECTURES",
    "HEAD",
    "ROPE_FACTORS",
    "Architecture",
    "RopeFactors",
    "architecture",
    "configuration",
]

log = logging.getLogger(__name__)

HEAD = "output.weight"
_BITNET_ACTIVATIONS = ("silu", "relu2")
_LLAMA3_TOKENS = 128256  # the vocabulary of BitNet 2B4T
_FULL, _SLIDING = "full_attention", "sliding_attention"
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
        biases: linears that may have a bias in llama.cpp's graph, as parts of names; others are refused.
        head: "read" if llama.cpp reads a head of its own, "left out" if its graph takes the embedding all the same, which a
            note says, and "refused" if it refuses the file.
        more: function that returns the keys of the configuration besides the common ones.
    """

    model_type: str
    neighbours: bool = False
    post_norms: bool = False
    partial: bool = False
    gated_up: bool = False
    delta_nets: bool = False
    biases: tuple[str, ...] = ()
    head: Literal["read", "left out", "refused"] = "read"
    more: Callable[[ArchitectureKeys, _Config], _Config] = lambda _reader, _config: {}


def _llama(reader: ArchitectureKeys, config: _Config) -> _Config:
    """Return Llama's activation, and whether any of its linears has a bias."""
    return {"mlp_bias": _has_bias(reader, *_MLP), "hidden_act": "silu"}


def _has_bias(reader: ArchitectureKeys, *parts: str) -> bool:
    """Return whether a linear of any layer has a bias; those that have none get zeros (``checkpoint``)."""
    ends = tuple(f".{part}.bias" for part in parts)
    return any(name.endswith(ends) for name in reader.header.tensors)


def _qwen(reader: ArchitectureKeys, config: _Config) -> _Config:
    return {"hidden_act": "silu", "use_sliding_window": False}


def _bitnet(reader: ArchitectureKeys, config: _Config) -> _Config:
    """Return the activation that the file names, or llama.cpp's SiLU; llama.cpp itself leaves the name out."""
    said = reader.text("hidden_activation", "silu")
    if said not in _BITNET_ACTIVATIONS:
        raise UnsupportedError(
            f"{reader.header.path}: {reader.name}.hidden_activation {shown(said)} is not read; "
            f"known: {', '.join(_BITNET_ACTIVATIONS)}"
        )
    if said != "silu":
        log.warning("%s: hidden_activation %s is used, which llama.cpp leaves out", reader.header.path, said)
    elif config["vocab_size"] == _LLAMA3_TOKENS:
        log.warning(
            "%s: a %s has SiLU here, as in llama.cpp; BitNet 2B4T has a squared ReLU, and as this "
            "architecture it is another model: convert it as bitnet-b1.58, or pass its checkpoint",
            reader.header.path,
            reader.name,
        )
    return {"hidden_act": said}


def _bitnet_b158(reader: ArchitectureKeys, config: _Config) -> _Config:
    reader.only("hidden_activation", "relu2", "bitnet.cpp has a squared ReLU there")
    return {"hidden_act": "relu2"}


def _phi3(reader: ArchitectureKeys, config: _Config) -> _Config:
    """Return the window of the model, which llama.cpp itself ignores (0 means no window), and the original context."""
    context = config["max_position_embeddings"]
    window = reader.integer("attention.sliding_window", 0, least=0) or None
    if window is not None and window < context:
        log.warning("%s: attention.sliding_window %d is used, which llama.cpp leaves out", reader.header.path, window)
    original = reader.integer("rope.scaling.original_context_length", context)
    return {"hidden_act": "silu", "sliding_window": window, "original_max_position_embeddings": original}


def _gemma(reader: ArchitectureKeys, config: _Config) -> _Config:
    return {"hidden_act": "gelu_pytorch_tanh", "rms_norm_offset": 0}


def _query_scalar(config: _Config, layers_27b: int) -> float:
    """Return the scale of queries. Only the 27B model, which its layers identify, uses model width / heads."""
    if config["num_hidden_layers"] == layers_27b:
        return float(config["hidden_size"] / config["num_attention_heads"])
    return float(config["head_dim"])


def _gemma2(reader: ArchitectureKeys, config: _Config) -> _Config:
    if reader.text("rope.scaling.type", "linear") == "none":
        reader.only("rope.scaling.factor", 1, "llama.cpp scales the layers with a window all the same")
    reader.only("rope.freq_base_swa", reader.number("rope.freq_base", 10000.0), "a gemma2 has one rotation")
    return _windows(reader, config, 2) | {
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_offset": 0,
        "query_pre_attn_scalar": _query_scalar(config, 46),
        "sliding_window": reader.integer("attention.sliding_window", 4096),
        "attn_logit_softcapping": reader.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": reader.number("final_logit_softcapping", 30.0),
    }


def _windows(reader: ArchitectureKeys, config: _Config, usual: int) -> _Config:
    """Return the kinds of layers of a Gemma: a window in all but every ``usual``-th layer, unless the file has a list."""
    key, layers = "attention.sliding_window_pattern", config["num_hidden_layers"]
    listed = reader.flags(key, layers) if reader.lists(key) else None
    period = usual if listed else reader.integer(key, usual, least=0)
    sliding = listed or tuple(period == 0 or layer % period < period - 1 for layer in range(layers))
    kinds = [_SLIDING if one else _FULL for one in sliding[:layers]]
    for width in ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"):
        reader.only(width, config["head_dim"], "heads of all layers have the same width")
    return {} if period == usual and not listed else {"layer_types": kinds}


def _gemma3(reader: ArchitectureKeys, config: _Config) -> _Config:
    """Return the windows: without one, or with one of 0, all layers see everything and have the same rotation."""
    keys = {
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_offset": 0,
        "query_pre_attn_scalar": _query_scalar(config, 62),
        "rope_local_base_freq": short(reader.number("rope.freq_base_swa", 10000.0)),
    }
    if reader.has("final_logit_softcapping"):
        keys["final_logit_softcapping"] = reader.number("final_logit_softcapping")
    if window := reader.integer("attention.sliding_window", 0, least=0):
        return keys | _windows(reader, config, 6) | {"sliding_window": window}
    return keys | {"layer_types": [_FULL] * config["num_hidden_layers"]}


def _smollm3(reader: ArchitectureKeys, config: _Config) -> _Config:
    return {"hidden_act": "silu", "no_rope_layer_interval": 4, "mlp_bias": False}


def _qwen35(reader: ArchitectureKeys, config: _Config) -> _Config:
    """Return the sizes of the delta nets, and norms that hold 1 + weight."""
    return delta_net_keys(reader, config) | {
        "hidden_act": "silu",
        "rms_norm_offset": 0,
        "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),  # the family's default is not llama.cpp's
    }


_QKV = ("attn_q", "attn_k", "attn_v", "attn_qkv")
_MLP = ("ffn_gate", "ffn_up", "ffn_down")
_BITNET_CPP = Architecture(model_type="bitnet", head="left out", more=_bitnet_b158)

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(model_type="llama", neighbours=True, biases=(*_QKV, "attn_output", *_MLP), more=_llama),
    "qwen2": Architecture(model_type="qwen2", biases=_QKV, more=_qwen),
    "qwen3": Architecture(model_type="qwen3", biases=_QKV, more=_qwen),
    "bitnet": Architecture(model_type="bitnet", head="refused", more=_bitnet),
    "bitnet-b1.58": _BITNET_CPP,
    "bitnet-25": _BITNET_CPP,
    "phi3": Architecture(model_type="phi3", partial=True, gated_up=True, more=_phi3),
    "gemma": Architecture(model_type="gemma", biases=_QKV, head="refused", more=_gemma),
    "gemma2": Architecture(model_type="gemma2", post_norms=True, biases=_QKV, head="refused", more=_gemma2),
    "gemma3": Architecture(model_type="gemma3_text", post_norms=True, biases=_QKV, more=_gemma3),
    "smollm3": Architecture(model_type="smollm3", neighbours=True, biases=_QKV, more=_smollm3),
    "qwen35": Architecture(model_type="qwen3_5_text", partial=True, delta_nets=True, biases=_QKV, more=_qwen35),
}

_REFUSED = {"qwen35moe": REFUSED["qwen3_5_moe"]}


def architecture(header: GgufHeader) -> Architecture:
    """Return the architecture of a file.

    Raises:
        UnsupportedError: edgedec does not support the architecture, or the file is not a language model.
    """
    check_general(header)
    name = header.metadata.get("general.architecture")
    known = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if known is None:
        reason = f": {_REFUSED[name]}" if isinstance(name, str) and name in _REFUSED else ""
        raise UnsupportedError(
            f"{header.path}: general.architecture {shown(name)} is not read{reason}; known: {', '.join(ARCHITECTURES)}"
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
    _check(reader, known)
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
        "vocab_size": _vocab_size(reader, embedding.shape[0]),
        "max_position_embeddings": reader.integer("context_length"),
        "rms_norm_eps": short(reader.number("attention.layer_norm_rms_epsilon")),
        "rope_theta": short(reader.number("rope.freq_base", 10000.0)),
        "tie_word_embeddings": known.head != "read" or not reader.tensor(HEAD),
    }
    if known.biases:
        config["attention_bias"] = _has_bias(reader, *(part for part in known.biases if part not in _MLP))
    if turned != head_dim:
        config["partial_rotary_factor"] = _share(reader, turned, head_dim)
    config |= known.more(reader, config)
    scaling = rope_scaling(reader, config, turned, rope_factors)
    if near := window_rotation(reader, config, turned) if "rope_local_base_freq" in config else {}:
        bases = {"sliding": config["rope_local_base_freq"], "full": config["rope_theta"]}
        config["rope_parameters"] = {
            f"{kind}_attention": {"rope_theta": base, **((scaling or {}) if kind == "full" else near)}
            for kind, base in bases.items()
        }
    reader.note_others()
    return config | {"rope_scaling": scaling} if scaling else config


def _check(reader: ArchitectureKeys, known: Architecture) -> None:
    """Check what llama.cpp reads for every architecture and no family has.

    Raises:
        UnsupportedError: there are experts, attention that sees later tokens, layers that guess, or a head or a bias
            that llama.cpp refuses.
    """
    path = reader.header.path
    if reader.integer("expert_count", 0, least=0):
        raise UnsupportedError(f"{path}: {reader.name}.expert_count: models with experts are not read")
    for key in ("expert_used_count", "expert_group_count"):
        reader.only(key, 0, "models with experts are not read")
    reader.only("attention.causal", True, "attention sees earlier tokens only")
    if not known.delta_nets:
        reader.only("nextn_predict_layers", 0, f"a {reader.name} has no layers that guess")
    if reader.tensor(HEAD) and known.head == "refused":
        raise UnsupportedError(
            f"{path}: tensor {HEAD!r}: the head of a {reader.name} is its embedding, and llama.cpp refuses another one"
        )
    for name in reader.header.tensors:
        _, part = layer_part(name) or (0, "")
        if part.endswith(".bias") and part.removesuffix(".bias") not in known.biases and part != STEP:
            raise UnsupportedError(
                f"{path}: tensor {name!r} has no place in a {known.model_type}; biases that llama.cpp has there: "
                f"{', '.join(known.biases) or 'none'}"
            )
        biases = [one for one in _QKV if reader.tensor(name.replace("attn_qkv.weight", f"{one}.bias"))]
        if part == "attn_qkv.weight" and 0 < len(biases) < 3 and biases != ["attn_qkv"]:
            raise UnsupportedError(f"{path}: tensor {name!r} has not all three biases, which llama.cpp then leaves out")


def _vocab_size(reader: ArchitectureKeys, rows: int) -> int:
    """Return the number of rows of the embedding; another ``vocab_size`` only stands beside a vocabulary, with a note.

    Raises:
        BundleError: ``vocab_size`` is another number, and there is no vocabulary.
    """
    said, path = reader.integer("vocab_size", rows), reader.header.path
    if said != rows:
        differs = f"{path}: {reader.name}.vocab_size is {said}, but the embedding has {rows} rows"
        if "tokenizer.ggml.tokens" not in reader.header.metadata:
            raise BundleError(differs)
        log.warning("%s; the rows count", differs)
    return rows


def _share(reader: ArchitectureKeys, turned: int, head_dim: int) -> float:
    """Return the share of a head's columns that are rotated, rounded up so that the product is at least ``turned``."""
    if turned > head_dim or turned % 2:
        raise BundleError(
            f"{reader.header.path}: {reader.name}.rope.dimension_count must be an even number up to {head_dim}, not {turned}"
        )
    share = turned / head_dim
    return share if int(head_dim * share) == turned else math.nextafter(share, 1)
