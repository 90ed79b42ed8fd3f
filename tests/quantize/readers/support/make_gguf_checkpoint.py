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
    part = name.split(".")[-2]
    if architecture in NEIGHBOURS and part in ("q_proj", "k_proj"):
        heads = config["num_attention_heads" if part == "q_proj" else "num_key_value_heads"]
        return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    return values


def tensors(architecture: str, config: Mapping[str, Any], weights: Mapping[str, F32]) -> dict[str, F32]:
    architectures = {str(name): number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    arch = gguf.MODEL_ARCH(architectures[_OTHER_NAMES.get(architecture, architecture)])
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    renamed = {}
    for name, values in weights.items():
        known_as = name
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
    return {
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
