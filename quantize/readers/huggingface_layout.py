"""Translate Hugging Face checkpoints of a known family that use other names, packed matrices or additional parts.

No data is copied: a matrix inside a packed matrix becomes an entry of its own, with its own place in the file.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from edgedec.families import REFUSED, build_graph, check_family
from edgedec.graph.ops import Embed
from edgedec.quantize.readers.checkpoint import model_graph
from edgedec.quantize.readers.safetensors_file import TensorEntry, same_values
from edgedec.quantize.readers.untrusted import shown

__all__ = ["language_config", "translate"]

log = logging.getLogger(__name__)

_FLOATS = ("float32", "float16", "bfloat16")
# Vision-language models by the family of their language model, the keys of the outer configuration that apply to the
# language model, too, and the sizes that the files leave to defaults of the class.
_SEEING = {"gemma3": "gemma3_text", "qwen3_5": "qwen3_5_text"}
_SHARED = ("bos_token_id", "eos_token_id", "quantization_config", "tie_word_embeddings")
_LEFT_OUT: Mapping[str, Mapping[str, int]] = {"gemma3_text": {"vocab_size": 262208, "num_attention_heads": 8}}
_OLDER, _NEWER = re.compile(r"^language_model\.", re.ASCII), re.compile(r"^model\.language_model\.", re.ASCII)
_SIGHT = re.compile(r"(?:model\.)?(?:vision_tower|multi_modal_projector|visual)\.", re.ASCII)
_AHEAD = "mtp."  # begins the names of layers that guess further tokens, which the model's own text does not need
# Packed matrices, and the matrices that they hold one below the other.
_PACKED = {
    **dict.fromkeys(("qkv_proj", "Wqkv"), ("q_proj", "k_proj", "v_proj")),
    **dict.fromkeys(("gate_up_proj", "fc1"), ("gate_proj", "up_proj")),
}
# transformers saves the MLP of a dense layer under the name that it has where it is a mixture of experts.
_KIMI, _KIMI_MLP = "kimi_linear", re.compile(r"\.block_sparse_moe\.(?=(?:gate|up|down)_proj\.)", re.ASCII)
# The reproduction of BitNet b1.58 (1bitLLM/bitnet_b1_58-*) is a class of its own whose model_type is "llama".
_BITNET_CLASS = "BitnetForCausalLM"
_BITNET_NORMS = {"inner_attn_ln": "attn_sub_norm", "ffn_layernorm": "ffn_sub_norm"}
_BITNET_DEFAULTS = {"hidden_act": "silu", "rope_theta": 10000.0, "rms_norm_eps": 1e-6}
_BITNET_WEIGHTS = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}


def language_config(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of the language model, which vision-language models keep in ``text_config``.

    Raises:
        BundleError: ``text_config`` is missing.
        UnsupportedError: the family is known, and cannot be supported.
    """
    if config.get("model_type") in tuple(REFUSED):
        try:
            check_family(config["model_type"])
        except UnsupportedError as error:
            raise UnsupportedError(f"{path}: {error}") from None
    family = _SEEING.get(str(config.get("model_type")))
    if family is None:
        return config
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        raise BundleError(f"{path}: text_config must be an object, not {shown(inner)}")
    shared = {key: config[key] for key in _SHARED if key in config}
    return {**_LEFT_OUT.get(family, {}), **shared, **inner, "model_type": family}


def translate(
    path: Path, config: dict[str, Any], entries: Mapping[str, TensorEntry]
) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
    """Return configuration and tensors with the names that the families use.

    Raises:
        BundleError: two tensors would have the same name, or a packed matrix has another shape than the configuration says.
        UnsupportedError: BitNet weights are not ternary, a packed matrix has a packed type, or the configuration has two
            different rotations.
    """
    _check_rotation(path, config)
    tensors = _language_model(path, config, entries)
    if config.get("model_type") == _KIMI:
        tensors = _renamed(path, tensors, {name: _KIMI_MLP.sub(".mlp.", name) for name in tensors})
    config, tensors = _reproduced_bitnet(path, config, tensors)
    tensors = _taken_apart(path, config, tensors)
    return _with_head(path, config, tensors)


def _check_rotation(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a ``rope_scaling`` that somebody wrote beside the ``rope_parameters`` of transformers 5.

    transformers then takes ``rope_scaling`` with its default ``rope_theta`` in place of the model's, which nobody means.
    """
    scaling, parameters = config.get("rope_scaling"), config.get("rope_parameters")
    if not isinstance(scaling, dict) or not isinstance(parameters, dict):
        return
    main = parameters.get("full_attention", parameters)  # Gemma 3 has one rotation for each kind of layer
    stated = {"rope_type" if key == "type" else key: value for key, value in scaling.items()}
    if not isinstance(main, dict) or any(main.get(key) != value for key, value in stated.items()):
        raise UnsupportedError(
            f"{path}: rope_scaling {shown(scaling)} is not what rope_parameters says; write its values into "
            "rope_parameters, and take rope_scaling out"
        )


def _renamed(path: Path, entries: Mapping[str, TensorEntry], names: Mapping[str, str]) -> dict[str, TensorEntry]:
    result: dict[str, TensorEntry] = {}
    for name, entry in entries.items():
        new = names.get(name, name)
        if new in result:
            raise BundleError(f"{path.parent}: two tensors have the name {new!r}; the checkpoint is damaged")
        result[new] = entry
    return result


def _language_model(
    path: Path, config: Mapping[str, Any], entries: Mapping[str, TensorEntry]
) -> dict[str, TensorEntry]:
    """Return the entries of the language model, without those of a vision model."""
    if str(config.get("model_type")) not in _SEEING.values():
        return dict(entries)
    kept = dict(entries)
    for part, belongs in (("vision model", _SIGHT.match), ("layers that guess", lambda name: name.startswith(_AHEAD))):
        others = [name for name in kept if belongs(name)]
        if others:
            log.warning("%s: %d tensors of its %s are left out; the bundle reads text", path.parent, len(others), part)
        kept = {name: entry for name, entry in kept.items() if name not in others}
    return _renamed(path, kept, {name: _OLDER.sub("", _NEWER.sub("model.", name)) for name in kept})


def _reproduced_bitnet(
    path: Path, config: dict[str, Any], entries: dict[str, TensorEntry]
) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
    """Translate a reproduction of BitNet, whose class rounds float weights to ternary whenever it runs them."""
    classes = config.get("architectures")
    if not isinstance(classes, list) or _BITNET_CLASS not in classes:
        return config, entries
    if config.get("weight_bits", 1) != 1 or config.get("input_bits", 8) != 8:
        raise UnsupportedError(
            f"{path}: {_BITNET_CLASS} with weight_bits {shown(config.get('weight_bits'))} and input_bits "
            f"{shown(config.get('input_bits'))} is not read; known: 1 and 8"
        )
    names = {}
    for name in entries:
        module, _, parameter = name.rpartition(".")
        place, _, norm = module.rpartition(".")
        if norm in _BITNET_NORMS:
            names[name] = f"{place}.{_BITNET_NORMS[norm]}.{parameter}"
    config = {**_BITNET_DEFAULTS, **config, "model_type": "bitnet"}
    if config.get("quantization_config") is None:
        config["quantization_config"] = dict(_BITNET_WEIGHTS)
    return config, _renamed(path, entries, names)


def _taken_apart(path: Path, config: Mapping[str, Any], entries: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Replace packed matrices (q, k, v and gate, up) by the matrices that they hold."""
    if not any(_packed_part(name) for name in entries):
        return entries
    weights = model_graph(path, config).weights
    result: dict[str, TensorEntry] = {}
    for name, entry in entries.items():
        part = None if name in weights else _packed_part(name)
        parts = {name.replace(f".{part}.", f".{inner}."): entry for inner in _PACKED[part]} if part else {name: entry}
        if part and all(inner in weights for inner in parts):
            parts = _rows(path, name, entry, {inner: weights[inner].shape for inner in parts})
        for inner, cut in parts.items():
            if inner in result:
                raise BundleError(f"{path.parent}: two tensors have the name {inner!r}; the checkpoint is damaged")
            result[inner] = cut
    return result


def _packed_part(name: str) -> str | None:
    parts = name.split(".")
    return parts[-2] if len(parts) > 1 and parts[-2] in _PACKED else None


def _rows(path: Path, name: str, entry: TensorEntry, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TensorEntry]:
    """Return the part of an entry that belongs to each matrix in ``shapes``."""
    rows, *rest = entry.info.shape or (0,)
    expected = (sum(shape[0] for shape in shapes.values()), *next(iter(shapes.values()))[1:])
    if (rows, *rest) != expected:
        raise BundleError(f"{entry.path}: tensor {name!r} is {entry.info.shape}, the configuration says {expected}")
    if entry.info.dtype not in _FLOATS:
        raise UnsupportedError(
            f"{entry.path}: tensor {name!r} holds several matrices as {entry.info.dtype}; "
            "save the model as F32, F16 or BF16, which are read"
        )
    result, at, row_bytes = {}, entry.offset, entry.nbytes // rows
    for inner, shape in shapes.items():
        size = shape[0] * row_bytes
        result[inner] = replace(entry, offset=at, nbytes=size, info=replace(entry.info, shape=shape))
        at += size
    return result


def _with_head(
    path: Path, config: dict[str, Any], entries: dict[str, TensorEntry]
) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
    """Return configuration and tensors with the head that transformers gives the model.

    A head that is tied by the configuration, or by the default of the class, is the one matrix that is stored, under
    either name. If both are stored and differ, they are not tied.
    """
    try:
        graph, untied = build_graph(config), build_graph(config | {"tie_word_embeddings": False})
    except EdgedecError:  # raised again, with a better message, where the graph is needed
        return config, entries
    head = untied.operations[-1].weight_names[0]
    embedding = next(op.weight for op in untied.operations if isinstance(op, Embed))
    if head in graph.weights:
        return config, entries
    if head in entries and embedding not in entries:
        entries = {embedding if name == head else name: entry for name, entry in entries.items()}
    elif head in entries and not same_values(entries[head], entries[embedding]):
        log.warning(
            "%s: says that %s is tied to %s, but both are stored and differ, so the head is one of its own, as in "
            "transformers", path, head, embedding,
        )  # fmt: skip
        return config | {"tie_word_embeddings": False}, entries
    return config | {"tie_word_embeddings": True}, entries
