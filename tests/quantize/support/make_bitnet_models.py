"""Make small natively ternary models, and folders of them in the BitNet layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.families import build_graph
from edgedec.quantize.exporters.bitnet import TernaryMatrix, write_bitnet_checkpoint
from tests.quantize.readers.support.make_checkpoints import hf_tokenizer, write_hf

# The width of the MLP is no multiple of 4, and no width is a multiple of a group.
SIZES: Mapping[str, Any] = {
    "hidden_size": 40,
    "intermediate_size": 70,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "vocab_size": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True, kw_only=True)
class Model:
    config: dict[str, Any]
    ternary: dict[str, TernaryMatrix]
    dense: dict[str, NDArray[Any]]
    group_size: int

    def value(self, name: str) -> NDArray[np.float32]:
        """Return scale * trit, spelled out."""
        weight = self.ternary[name]
        scales = np.asarray(weight.scales)
        if self.group_size:
            scales = scales[:, np.arange(weight.trits.shape[1]) // self.group_size]
        return weight.trits.astype(np.float32) * scales


def model(
    family: str = "llama", *, group_size: int = 0, seed: int = 0, dense_type: Any = np.float32, **config: Any
) -> Model:
    """Return a random model with norms around 1 and logits of a few units."""
    rng = np.random.default_rng(seed)
    config = {"model_type": family, "tie_word_embeddings": True, **SIZES, **config}
    ternary: dict[str, TernaryMatrix] = {}
    dense: dict[str, NDArray[Any]] = {}
    for name, spec in build_graph(config).weights.items():
        if name.endswith("_proj.weight"):
            outputs, inputs = spec.shape
            shape = (outputs, -(-inputs // group_size)) if group_size else ()
            scales = np.asarray(rng.uniform(0.5, 2, shape) / np.sqrt(inputs), np.float32)
            ternary[name] = TernaryMatrix(trits=rng.integers(-1, 2, spec.shape, np.int8), scales=scales)
        else:
            values = rng.standard_normal(spec.shape)
            if name.endswith("norm.weight"):
                values = 1 + values / 10
            dense[name] = values.astype(dense_type)
    return Model(config=config, ternary=ternary, dense=dense, group_size=group_size)


def export(folder: Path, original: Model, **changes: Any) -> Path:
    """Write the model with the exporter."""
    arguments: dict[str, Any] = {
        "config": original.config,
        "ternary": original.ternary,
        "dense": original.dense,
        "tokenizer_json": json.dumps(hf_tokenizer()).encode(),
        "tokenizer_config": {"bos_token": "<s>", "eos_token": "</s>"},
    }
    write_bitnet_checkpoint(folder, **(arguments | changes))
    return folder


def naive_pack(trits: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Pack like ``pack_weights`` of transformers, element by element."""
    outputs, inputs = trits.shape
    rows = (outputs + 3) // 4
    packed = np.zeros((rows, inputs), np.uint8)
    for row in range(outputs):
        for column in range(inputs):
            packed[row % rows, column] |= (int(trits[row, column]) + 1) << (2 * (row // rows))
    return packed


def tensors(original: Model, *, divides: bool = False, packed: bool = True) -> dict[str, NDArray[Any]]:
    """Return the content of ``model.safetensors`` without the exporter; ``divides`` inverts the scales for bitlinear."""
    contents = dict(original.dense)
    for name, weight in original.ternary.items():
        scales = np.asarray(weight.scales)
        contents[name] = naive_pack(weight.trits) if packed else weight.trits.astype(np.float32)
        contents[f"{name}_scale"] = np.atleast_1d((1 / scales if divides else scales).astype(np.float32))
    return contents


def write(
    folder: Path, original: Model, contents: Mapping[str, NDArray[Any]] | None = None, **quantization: Any
) -> Path:
    """Write a folder with a ``quantization_config`` of these keys."""
    quantization = {"quant_method": "bitnet", **quantization}
    contents = tensors(original) if contents is None else dict(contents)
    return write_hf(folder, contents, **original.config, quantization_config=quantization)
