"""Write Hugging Face tensors as a GGUF file, with the ``gguf`` package's names and the order of llama.cpp's
conversion/.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.quantize.readers.support.make_gguf import vocabulary

F32 = NDArray[np.float32]

NEIGHBOURS = ("llama", "smollm3")  # architectures whose converter turns halves of a head into neighbours
_OTHER_NAMES = {"bitnet-b1.58": "bitnet"}  # bitnet.cpp's own name; its tensors have the names of bitnet
_REPRODUCTION = {"self_attn.attn_sub_norm": "self_attn.inner_attn_ln", "mlp.ffn_sub_norm": "mlp.ffn_layernorm"}


def _arranged(architecture: str, config: Mapping[str, Any], name: str, values: F32) -> F32:
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return values + np.float32(1)
    if architecture == "qwen35":
        return _qwen35(config, name, values)
    part = name.split(".")[-2]
    if architecture in NEIGHBOURS and part in ("q_proj", "k_proj"):
        heads = config["num_attention_heads" if part == "q_proj" else "num_key_value_heads"]
        return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    return values


def _tiled(config: Mapping[str, Any], values: NDArray[Any], axis: int = 0) -> NDArray[Any]:
    """Return value heads, stored one after the other along ``axis``, in the order of the file.

    The first head of each key head comes first, then the second of each, and so on.
    """
    heads = config["linear_num_value_heads"]
    each = heads // config["linear_num_key_heads"]
    parts = np.split(values, heads, axis)
    return np.concatenate([parts[at] for first in range(each) for at in range(first, heads, each)], axis)


def reordered(config: Mapping[str, Any], name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return a tensor of a gated delta net with its value heads in the order of the file."""
    part = name.split("linear_attn.")[1].removesuffix(".weight")
    if part in ("in_proj_qkv", "conv1d"):
        values = values.squeeze(1) if part == "conv1d" else values
        others = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
        return np.concatenate([values[:others], _tiled(config, values[others:])])
    if part == "norm":
        return values
    return _tiled(config, values, axis=1 if part == "out_proj" else 0)


def _qwen35(config: Mapping[str, Any], name: str, values: F32) -> F32:
    if "linear_attn" not in name:
        return values + np.float32(1) if name.endswith("norm.weight") else values
    return reordered(config, name, -np.exp(values) if name.endswith("A_log") else values)


def tensors(architecture: str, config: Mapping[str, Any], weights: Mapping[str, F32]) -> dict[str, F32]:
    architectures = {str(name): number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    arch = gguf.MODEL_ARCH(architectures[_OTHER_NAMES.get(architecture, architecture)])
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    renamed = {}
    for name, values in weights.items():
        known_as = name.replace("linear_attn.dt_bias", "linear_attn.dt_proj.bias")
        for original, theirs in _REPRODUCTION.items():  # the names that the package knows
            known_as = known_as.replace(original, theirs)
        ours = names.get_name(known_as, try_suffixes=(".weight", ".bias"))
        assert ours, name
        renamed[ours] = _arranged(architecture, config, name, values)
    return renamed


def metadata(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that every architecture has."""
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    return _delta_net_metadata(config) | {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(rope["rope_theta"]),
    }


def _delta_net_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a model with gated delta nets, or none."""
    if "linear_num_key_heads" not in config:
        return {}
    heads, rope = config["linear_num_value_heads"], config["rope_parameters"]
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config["linear_value_head_dim"],
        "rope.dimension_count": int(config["head_dim"] * rope["partial_rotary_factor"]),
        "rope.dimension_sections": [11, 11, 10, 0],  # the converter's default
    }


def write(
    path: Path, architecture: str, config: Mapping[str, Any], weights: Mapping[str, F32], more: Mapping[str, Any]
) -> Path:
    """Write the file.

    ``more`` is metadata of the architecture alone; a key that is an array of float32 becomes a tensor of that name.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata(architecture, config) | dict(more)).items():
        key = f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
    for key, value in vocabulary().items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    for name, values in tensors(architecture, config, weights).items():
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    for name, values in more.items():
        if isinstance(values, np.ndarray):
            writer.add_tensor(f"{name}.weight", values)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path
