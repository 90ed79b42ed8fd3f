"""Write random models of BitNet b1.58 0.73B's shape, with the same trits as a bundle and as llama.cpp's GGUF.

The weights are random, because speed does not depend on them. They are the same in both files, so the logits differ only by
rounding, which shows that the two programs do the same work.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.atomic import new_file
from edgedec.bundle.bundle import BundleWriter
from edgedec.bundle.manifest import Tokens
from edgedec.families import build_graph
from edgedec.progress import Progress, silent
from edgedec.quantize.methods.int8 import quantize_int8
from edgedec.quantize.synthetic.random_bundle import SHAPES
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme, Scheme, TernaryScheme

__all__ = [
    "BITNET_073B",
    "BITNET_2B4T",
    "BONSAI_17B",
    "GEMMA_2_2B",
    "REVISION",
    "STORIES_260K",
    "gguf_name",
    "token_ids",
    "write_bundle",
    "write_gguf",
]

BITNET_073B: Mapping[str, Any] = {
    "model_type": "bitnet",
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 32002,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,  # the head is int8 in a bundle, and both come from one matrix
}
# microsoft/bitnet-b1.58-2B-4T, whose embedding is tied; the accelerator reads the head's only, which is int8 in a bundle.
BITNET_2B4T: Mapping[str, Any] = {**SHAPES["bitnet-2b4t"], "model_type": "bitnet", "hidden_act": "relu2"}
# Ternary-Bonsai of Qwen3-1.7B's shape.
BONSAI_17B: Mapping[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,  # one matrix gives both, but the accelerator reads the head's only
}
# Gemma 2 2B, as ``quantize --method ternary`` leaves it.
GEMMA_2_2B: Mapping[str, Any] = {
    "model_type": "gemma2",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "vocab_size": 256000,
    "sliding_window": 4096,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,  # one matrix gives both, but the accelerator reads the head's only
}
# karpathy/tinyllamas, stories260K, whose head is int8 here as BitNet's is.
STORIES_260K: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
REVISION = 2  # revision of the written models; part of the names of their files
# scale of every matrix of a layer: exact in float16, and about the size that keeps activations near 1
SCALES = {"ternary": 2.0**-5, "int4": 2.0**-7}
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_ROWS_AT_ONCE = 2048
_F16 = 1  # GGML's number of float16; 0 is float32
_ALIGNMENT = 32  # default alignment of tensors in a GGUF, in bytes

_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.attn_sub_norm": "attn_sub_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.ffn_sub_norm": "ffn_sub_norm",
    "mlp.down_proj": "ffn_down",
}


def token_ids(count: int, vocab: int) -> NDArray[np.int32]:
    """Return the text of every measurement with both programs; benchmarks/peers/llama_driver.cpp has the same formula."""
    return ((np.arange(count, dtype=np.int64) * 7919 + 13) % vocab).astype(np.int32)


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a tensor."""
    top = {_EMBEDDING: "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in top:
        return top[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[part]}.weight"


def _tensors(config: Mapping[str, Any], weights: str) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield every tensor except the head, which equals the embedding, with the same values on every call.

    The embedding is bfloat16, trits or codes of int4 are int8, norms are float32. The first code of 32 is -8, from which
    llama-quantize finds the scale of a Q4_0 block, so that both programs have the same codes.
    """
    rng = np.random.default_rng(0)
    for name, spec in build_graph(config).weights.items():
        if name == _EMBEDDING:
            yield name, rng.standard_normal(spec.shape, np.float32).astype(ml_dtypes.bfloat16)
        elif len(spec.shape) == 1:
            yield name, np.ones(spec.shape, np.float32)
        elif name != _HEAD and weights == "int4":
            codes = rng.integers(-7, 8, spec.shape, np.int8)
            codes[:, ::32] = -8
            yield name, codes
        elif name != _HEAD:
            yield name, rng.integers(-1, 2, spec.shape, np.int8)


def _tokenizer(vocab: int) -> str:
    names = {f"t{at}": at for at in range(vocab)}
    model = {"type": "BPE", "vocab": names, "merges": []}
    return json.dumps({"version": "1.0", "model": model, "added_tokens": []})


def _int8_head(embedding: NDArray[Any]) -> dict[str, NDArray[Any]]:
    codes, scale = np.empty(embedding.shape, np.int8), np.empty(len(embedding), np.float32)
    for start in range(0, len(embedding), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        codes[some], scale[some] = quantize_int8(embedding[some].astype(np.float32))
    return {"codes": codes, "scale": scale}


def _layer(codes: NDArray[np.int8], weights: str) -> tuple[Scheme, Mapping[str, NDArray[Any]]]:
    """Return scheme and stored parts of a matrix of a layer."""
    if weights == "int4":
        int4 = Int4Scheme()
        scale: NDArray[Any] = np.full(int4.parts(codes.shape)["scale"].shape, SCALES[weights], np.float16)
        return int4, {"codes": int4.pack((codes + 8).astype(np.uint8)), "scale": scale}
    single: NDArray[Any] = np.array([SCALES[weights]], np.float32)
    return TernaryScheme(), {"codes": TernaryScheme().pack(codes[None]), "scale": single}


def write_bundle(
    path: Path, config: Mapping[str, Any], progress: Progress = silent, *, weights: str = "ternary"
) -> None:
    """Write a bundle with float embedding, int8 head, and layers of ``weights``: "ternary" or "int4".

    It has the schemes that ``edgedec quantize --method ternary`` or ``int4`` gives a checkpoint of this kind.
    """
    shapes = {name: spec.shape for name, spec in build_graph(config).weights.items()}
    with BundleWriter.create(path) as writer:
        for done, (name, array) in enumerate(_tensors(config, weights)):
            progress(name, done, len(shapes))
            if array.dtype == np.int8:
                scheme, parts = _layer(array, weights)
                writer.add(name, scheme, array.shape, parts)
            else:
                writer.add(name, FloatScheme(dtype=array.dtype.name), array.shape, {"values": array})
            if name == _EMBEDDING:
                writer.add(_HEAD, Int8Scheme(rows=True), array.shape, _int8_head(array))
        writer.finish(
            config=config,
            quantization={"method": weights, "made_by": "benchmarks/support/shapes.py, at random"},
            tokens=Tokens(size=config["vocab_size"]),
            tokenizer_json=_tokenizer(config["vocab_size"]),
            chat_template=None,
        )


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _entry(key: str, value: str | int | float) -> bytes:
    if isinstance(value, str):
        return _string(key) + struct.pack("<I", 8) + _string(value)
    if isinstance(value, float):
        return _string(key) + struct.pack("<If", 6, value)
    return _string(key) + struct.pack("<II", 4, value)


def _metadata(config: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Return the metadata that llama.cpp needs for a BitNet. Without a vocabulary it invents names for the ids."""
    heads = config["num_attention_heads"]
    return {
        "general.architecture": "bitnet",
        "general.name": "random BitNet",
        "general.file_type": _F16,
        "bitnet.vocab_size": config["vocab_size"],
        "bitnet.context_length": config["max_position_embeddings"],
        "bitnet.embedding_length": config["hidden_size"],
        "bitnet.block_count": config["num_hidden_layers"],
        "bitnet.feed_forward_length": config["intermediate_size"],
        "bitnet.attention.head_count": heads,
        "bitnet.attention.head_count_kv": config["num_key_value_heads"],
        "bitnet.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "bitnet.rope.dimension_count": config["hidden_size"] // heads,
        "bitnet.rope.freq_base": float(config["rope_theta"]),
        "tokenizer.ggml.model": "no_vocab",
    }


def _header(config: Mapping[str, Any], tensors: Sequence[tuple[str, tuple[int, ...]]]) -> bytes:
    """Return the bytes before the first tensor.

    Matrices are float16, vectors float32; sizes are listed from the innermost outwards.
    """
    entries, at, infos = _metadata(config), 0, b""
    for name, shape in tensors:
        matrix = len(shape) == 2
        infos += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos += struct.pack("<IQ", _F16 if matrix else 0, at)
        at += -(-int(np.prod(shape)) * (2 if matrix else 4) // _ALIGNMENT) * _ALIGNMENT
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    header += b"".join(_entry(key, value) for key, value in entries.items()) + infos
    return header + b"\0" * (-len(header) % _ALIGNMENT)


def write_gguf(path: Path, config: Mapping[str, Any], progress: Progress = silent, *, weights: str = "ternary") -> None:
    """Write the same model for llama.cpp with float16 matrices, which ``llama-quantize`` then converts to TQ2_0 or Q4_0.

    Source: docs/gguf.md of ggml.
    """
    shapes = [(gguf_name(name), spec.shape) for name, spec in build_graph(config).weights.items() if name != _HEAD]
    scale = np.float16(SCALES[weights])
    to_stored: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
        "int8": lambda codes: codes * scale,
        "bfloat16": lambda rows: rows.astype(np.float16),
        "float32": lambda vector: vector,
    }
    with new_file(path) as partial, partial.open("wb") as file:
        file.write(_header(config, shapes))
        for done, (name, array) in enumerate(_tensors(config, weights)):
            progress(name, done, len(shapes))
            file.write(np.ascontiguousarray(to_stored[array.dtype.name](array)).view(np.uint8).reshape(-1).data)
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
