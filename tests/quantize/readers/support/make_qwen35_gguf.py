"""Write small random models of Qwen 3.5 as llama.cpp's converter does, with matrices of any type, and rotated.

The order of value heads is that of ``make_gguf_checkpoint``, which shares no code with the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from edgedec.families import build_graph
from tests.quantize.readers.support import make_gguf, make_gguf_checkpoint
from tests.quantize.readers.support import make_ternary_gguf as maker
from tests.quantize.readers.support.make_ternary_gguf import GROUP, Matrix

F32 = NDArray[np.float32]
HIDDEN, INTER, VOCAB, HEAD_DIM = 128, 256, 13, 64
RATES = ("ssm_alpha", "ssm_beta")  # matrices that are floats in ternary files


def config(value_dim: int = 128, **changes: Any) -> dict[str, Any]:
    """Return Hugging Face's configuration of a model with a gated delta net and a layer of attention."""
    return {
        "model_type": "qwen3_5_text",
        "hidden_size": HIDDEN,
        "intermediate_size": INTER,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": value_dim,
        "linear_conv_kernel_dim": 4,
        "tie_word_embeddings": False,
        **changes,
    }


def names(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return llama.cpp's name of each tensor, by Hugging Face's."""
    shapes = {name: spec.shape for name, spec in build_graph(settings).weights.items()}
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return dict(zip(zeros, make_gguf_checkpoint.tensors("qwen35", settings, zeros), strict=True))


def random_weights(settings: Mapping[str, Any], seed: int = 0) -> dict[str, F32]:
    """Return float weights by Hugging Face's names."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, spec in build_graph(settings).weights.items():
        scale = spec.shape[-1] ** -0.5 if len(spec.shape) > 1 else 0.3
        weights[name] = (rng.standard_normal(spec.shape) * scale).astype(np.float32)
        if name.endswith("linear_attn.norm.weight"):
            weights[name] += np.float32(1)
    return weights


def random_ternary(settings: Mapping[str, Any], seed: int = 0) -> dict[str, Matrix | F32]:
    """Return the tensors of a file by llama.cpp's names, in the order of the file, whose matrices are ternary."""
    rng = np.random.default_rng(seed)
    floats = make_gguf_checkpoint.tensors("qwen35", settings, random_weights(settings, seed))
    model: dict[str, Matrix | F32] = {}
    for name, values in floats.items():
        model[name] = values
        if values.ndim == 2 and "conv1d" not in name and not any(part in name for part in RATES):
            codes = rng.integers(-1, 2, values.shape).astype(np.int8)
            model[name] = Matrix(codes, maker.random_scales(rng, len(codes), codes.shape[1] // GROUP))
    return model


def checkpoint_weights(settings: Mapping[str, Any], model: Mapping[str, Matrix | F32]) -> dict[str, F32]:
    """Return what Hugging Face has in place of the tensors of a file, by asking the converter where each value goes."""
    weights = {}
    shapes = {name: spec.shape for name, spec in build_graph(settings).weights.items()}
    for name, theirs in names(settings).items():
        stored = model[theirs]
        values = stored.dense() if isinstance(stored, Matrix) else stored
        if name.endswith("A_log"):
            values = np.log(-values)
        elif name.endswith("norm.weight") and "linear_attn" not in name:
            values = values - np.float32(1)
        if "linear_attn" in name and not name.endswith("linear_attn.norm.weight"):
            ids = np.arange(values.size, dtype=np.float64).reshape(shapes[name])
            moved = make_gguf_checkpoint.reordered(settings, name, ids)
            restored = np.empty(values.size, np.float32)
            restored[moved.reshape(-1).astype(np.intp)] = values.reshape(-1)
            values = restored.reshape(shapes[name])
        weights[name] = values
    return weights


def metadata(settings: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the metadata of a file; ``changes`` as ``make_gguf.metadata`` takes them."""
    keys = make_gguf_checkpoint.metadata("qwen35", settings) | {"full_attention_interval": 2}
    own: dict[str, Any] = {f"qwen35__{key}": value for key, value in keys.items()}
    return make_gguf.metadata("qwen35", **(own | changes))


def byte_vocabulary() -> dict[str, Any]:
    """Return the metadata of a vocabulary of 259 tokens: all bytes, an end and two merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words: dict[str, Any] = {
        "model": "gpt2",
        "pre": "qwen35",
        "tokens": [*letters, "<|endoftext|>", "He", "ll"],
        "token_type": [*[1] * len(letters), 3, 1, 1],
        "merges": ["H e", "l l"],
        "scores": None,
        "bos_token_id": None,
        "eos_token_id": len(letters),
    }
    return {f"tokenizer__ggml__{key}": value for key, value in words.items()}


def write(
    path: Path, settings: Mapping[str, Any], model: Mapping[str, Matrix | F32], kind: str = "F32", **changes: Any
) -> Path:
    tensors = [maker.tensor(name, values, kind) for name, values in model.items()]
    path.write_bytes(make_gguf.file_bytes(metadata(settings, **changes), tensors))
    return path
