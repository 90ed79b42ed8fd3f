"""Our bundles as llama.cpp's GGUF: the same codes and scales, so that both programs run the same model.

Trits become TQ2_0, int8 codes Q8_0, embeddings keep their type. Only scales lose bits: GGML keeps one in float16 for each
block, a bundle one in float32 for each matrix or row. The order of q's and k's rows follows llama.cpp's rotation.

Source: docs/gguf.md of ggml; ``block_tq2_0`` and ``block_q8_0`` of its ggml-common.h.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.atomic import new_file
from edgedec.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph import Graph
from edgedec.ops import Embed, RmsNorm
from edgedec.progress import Progress, silent
from edgedec.schemes import FloatWeight, Int8Weight, TernaryWeight, Weight

__all__ = ["tensor_name", "write_llama"]

Array = NDArray[Any]
Value = str | int | float | bool | Sequence[str] | Sequence[float] | Sequence[int]

_ALIGNMENT = 32  # of tensors, unless the file says otherwise
_MAGIC, _VERSION = b"GGUF", 3
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_NORMAL_TOKEN = 1

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_PLAIN_KEYS = ("rope_scaling", "rope_parameters", "attention_bias", "mlp_bias", "partial_rotary_factor")


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A type of GGML: its number, and ``block_bytes`` of each ``block`` values along a row."""

    number: int
    block: int
    block_bytes: int

    def nbytes(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) // self.block * self.block_bytes


_F32 = _Kind(number=0, block=1, block_bytes=4)
_F16 = _Kind(number=1, block=1, block_bytes=2)
_BF16 = _Kind(number=30, block=1, block_bytes=2)
_Q8_0 = _Kind(number=8, block=32, block_bytes=34)
_TQ2_0 = _Kind(number=35, block=256, block_bytes=66)
_FLOATS = {"float32": _F32, "float16": _F16, "bfloat16": _BF16}


def tensor_name(name: str) -> str:
    """llama.cpp's name of one of our tensors."""
    stem = name.removesuffix(".weight")
    if stem in _TOP:
        return f"{_TOP[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.weight"


def _kind(name: str, weight: Weight, inputs: int) -> _Kind:
    if isinstance(weight, FloatWeight):
        # Vectors are added and multiplied in float32, and the file holds them so.
        return _FLOATS[weight.values.dtype.name] if weight.values.ndim == 2 else _F32
    kind = _Q8_0 if isinstance(weight, Int8Weight) else _TQ2_0
    if isinstance(weight, TernaryWeight) and (len(weight.trits) > 1 or weight.group_size):
        raise UnsupportedError(f"tensor {name}: TQ2_0 holds one plane of trits with one scale; take a ternary model")
    if inputs % kind.block:
        raise UnsupportedError(f"tensor {name}: rows of {inputs} are no multiple of GGML's block of {kind.block}")
    return kind


def _scales(values: Array, blocks: int) -> Array:
    """float32 [rows] or [1] -> the float16 that stands in every block of a row: uint8 [rows or 1, blocks, 2]."""
    with np.errstate(over="ignore"):
        half = values.astype("<f2")
    if not np.isfinite(half).all():
        raise UnsupportedError(f"a scale of {np.abs(values).max():g} does not fit into GGML's float16")
    return np.repeat(half[:, None], blocks, axis=1).view(np.uint8).reshape(len(half), blocks, 2)


def _q8_0(codes: NDArray[np.int8], scale: NDArray[np.float32]) -> Array:
    """codes int8 [out, in], scale float32 [out] -> uint8 [out, in / 32, 34]: scale, then 32 codes."""
    outputs, inputs = codes.shape
    blocks = np.empty((outputs, inputs // 32, 34), np.uint8)
    blocks[..., :2] = _scales(scale, inputs // 32)
    blocks[..., 2:] = np.ascontiguousarray(codes).view(np.uint8).reshape(outputs, -1, 32)
    return blocks


def _tq2_0(trits: NDArray[np.int8], scale: NDArray[np.float32]) -> Array:
    """trits int8 [out, in], scale float32 [1] -> uint8 [out, in / 256, 66]: codes, then the scale.

    A code is trit + 1. Byte m of a half block of 32 bytes holds those of columns m, m + 32, m + 64 and m + 96, lowest first.
    """
    outputs, inputs = trits.shape
    blocks = np.empty((outputs, inputs // 256, 66), np.uint8)
    four = (trits + 1).view(np.uint8).reshape(outputs, -1, 2, 4, 32)
    packed = four[..., 0, :] | four[..., 1, :] << 2 | four[..., 2, :] << 4 | four[..., 3, :] << 6
    blocks[..., :64] = packed.reshape(outputs, -1, 64)
    blocks[..., 64:] = _scales(scale, inputs // 256)
    return blocks


def _stored(weight: Weight, kind: _Kind, order: NDArray[np.intp] | None, rows: int) -> Array:
    """A tensor's bytes: rows in ``order``, and zeros up to ``rows``."""
    if isinstance(weight, FloatWeight):
        stored = weight.values.astype(np.float32) if kind is _F32 else weight.values
    elif isinstance(weight, Int8Weight):
        stored = _q8_0(weight.codes, weight.scale)
    else:
        stored = _tq2_0(weight.trits[0], weight.scale)
    if order is not None:
        stored = stored[order]
    data = np.ascontiguousarray(stored).view(np.uint8).reshape(len(stored), -1)
    return data if rows == len(data) else np.pad(data, ((0, rows - len(data)), (0, 0)))


def _rotation_order(heads: int, head_dim: int) -> NDArray[np.intp]:
    """Of q's or k's rows: llama.cpp rotates neighbours, Hugging Face's layout the halves of a head."""
    return np.arange(heads * head_dim).reshape(heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)


def _metadata(bundle: Bundle, graph: Graph, vocab: int) -> dict[str, Value]:
    """Tokens have made-up names: texts go in and out as ids. But both models of a pair need the same ones."""
    config = bundle.config
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return {
        "general.architecture": "llama",
        "general.name": bundle.path.stem,
        "llama.vocab_size": vocab,
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": config.get("num_key_value_heads") or heads,
        "llama.attention.key_length": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.attention.layer_norm_rms_epsilon": next(op.eps for op in graph.operations if isinstance(op, RmsNorm)),
        "llama.rope.dimension_count": head_dim,
        "llama.rope.freq_base": float(config.get("rope_theta") or 10000.0),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [f"t{at}" for at in range(vocab)],
        "tokenizer.ggml.scores": [0.0] * vocab,
        "tokenizer.ggml.token_type": [_NORMAL_TOKEN] * vocab,
        "tokenizer.ggml.bos_token_id": bundle.tokens.bos or 0,
        "tokenizer.ggml.eos_token_id": bundle.tokens.eos[0] if bundle.tokens.eos else 0,
        "tokenizer.ggml.add_bos_token": False,
    }


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> tuple[int, bytes]:
    """GGUF's number of the type, and the bytes. Numbers of an array are signed, others are not."""
    if isinstance(value, str):
        return _STRING, _string(value)
    if isinstance(value, bool):
        return _BOOL, struct.pack("<B", value)
    if isinstance(value, float):
        return _FLOAT32, struct.pack("<f", value)
    if isinstance(value, int):
        return _UINT32, struct.pack("<I", value)
    kind, _ = _value(value[0])
    kind = _INT32 if kind == _UINT32 else kind
    elements = b"".join(_string(one) if isinstance(one, str) else _number(one) for one in value)
    return _ARRAY, struct.pack("<IQ", kind, len(value)) + elements


def _number(value: float) -> bytes:
    return struct.pack("<f" if isinstance(value, float) else "<i", value)


def _header(metadata: Mapping[str, Value], tensors: Sequence[tuple[str, tuple[int, ...], _Kind]]) -> bytes:
    """Up to the first tensor. Sizes are listed from the innermost outwards."""
    entries, at, infos = b"", 0, b""
    for key, value in metadata.items():
        kind_number, data = _value(value)
        entries += _string(key) + struct.pack("<I", kind_number) + data
    for name, shape, kind in tensors:
        infos += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos += struct.pack("<IQ", kind.number, at)
        at += -(-kind.nbytes(shape) // _ALIGNMENT) * _ALIGNMENT
    header = _MAGIC + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata)) + entries + infos
    return header + b"\0" * (-len(header) % _ALIGNMENT)


def write_llama(bundle: Bundle, path: Path, *, vocab: int | None = None, progress: Progress = silent) -> None:
    """Write ``bundle``, of the Llama family, as a GGUF.

    Args:
        vocab: rows of embedding and head; those that the bundle lacks are zeros. llama.cpp refuses a draft whose
            vocabulary is much smaller than the target's. None: the bundle's own.

    Raises:
        UsageError: ``vocab`` is below the bundle's own.
        UnsupportedError: GGML or llama.cpp's "llama" cannot express the model; says what.
    """
    config = bundle.config
    own = config["vocab_size"]
    vocab = own if vocab is None else vocab
    if vocab < own:
        raise UsageError(f"vocab must be at least the model's {own}, not {vocab}")
    if config.get("model_type") != "llama":
        raise UnsupportedError(f"{bundle.path}: llama.cpp's names are known for Llama, not {config.get('model_type')}")
    if odd := [key for key in _PLAIN_KEYS if config.get(key)]:
        raise UnsupportedError(f"{bundle.path}: {', '.join(odd)} has no counterpart in the GGUF that is written here")
    graph = build_graph(config)
    bundle.check(graph)
    metadata = _metadata(bundle, graph, vocab)
    tables = {graph.operations[-1].weight_names[0], *(op.weight for op in graph.operations if isinstance(op, Embed))}
    heads = {"q_proj": metadata["llama.attention.head_count"], "k_proj": metadata["llama.attention.head_count_kv"]}

    def described(name: str) -> tuple[str, tuple[int, ...], _Kind]:
        shape = graph.weights[name].shape
        rows = (vocab,) if name in tables else shape[:1]
        return tensor_name(name), (*rows, *shape[1:]), _kind(name, bundle.weight(name), shape[-1])

    tensors = {name: described(name) for name in graph.weights}
    with new_file(path) as partial, partial.open("wb") as file:
        file.write(_header(metadata, list(tensors.values())))
        for done, (name, (_, shape, kind)) in enumerate(tensors.items()):
            progress(name, done, len(tensors))
            part = name.split(".")[-2]
            order = None
            if part in heads and not config.get("rope_interleaved"):
                count = int(heads[part])  # type: ignore[arg-type]
                order = _rotation_order(count, graph.weights[name].shape[0] // count)
            file.write(_stored(bundle.weight(name), kind, order, shape[0]).data)
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
