"""Write small valid GGUF files for the tests byte by byte, and damaged ones."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32, F16, Q4_0, Q8_0, TQ1_0, TQ2_0 = 0, 1, 2, 8, 34, 35
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10
HIDDEN, INTER, VOCAB, HEADS, KV_HEADS = 8, 12, 13, 2, 1
LETTERS = ("\u2581", "t", "h", "e", "a", "th", "the", "\u2581the", "\u2581a", "he")


@dataclass(frozen=True)
class Raw:
    """Hold a metadata value as in the file: GGUF's number of the type, and the bytes."""

    kind: int
    data: bytes


@dataclass(frozen=True)
class RawTensor:
    """Describe a tensor: ``sizes`` run from the innermost outwards, as in the file; ``offset`` None follows the tensor
    before.
    """

    name: bytes
    sizes: Sequence[int]
    kind: int
    data: bytes
    offset: int | None = None


def string(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def raw(value: Any) -> Raw:
    if isinstance(value, Raw):
        return value
    if isinstance(value, bool):
        return Raw(BOOL, struct.pack("<B", value))
    if isinstance(value, int):
        return Raw(UINT32, struct.pack("<I", value))
    if isinstance(value, float):
        return Raw(FLOAT32, struct.pack("<f", value))
    if isinstance(value, str):
        return Raw(STRING, string(value))
    first = value[0]
    kind = STRING if isinstance(first, str) else FLOAT32 if isinstance(first, float) else INT32
    data = b"".join(
        string(item) if kind == STRING else struct.pack("<f" if kind == FLOAT32 else "<i", item) for item in value
    )
    return Raw(ARRAY, struct.pack("<IQ", kind, len(value)) + data)


def file_bytes(
    metadata: Mapping[str, Any] | Sequence[tuple[str | bytes, Any]],
    tensors: Sequence[RawTensor],
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    entry_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    entries = list(metadata.items()) if isinstance(metadata, Mapping) else list(metadata)
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(entries) if entry_count is None else entry_count,
    )
    header = magic + struct.pack("<IQQ", version, *counts)
    for key, value in entries:
        header += string(key) + struct.pack("<I", raw(value).kind) + raw(value).data
    body = b""
    for tensor in tensors:
        offset = len(body) if tensor.offset is None else tensor.offset
        header += string(tensor.name) + struct.pack(f"<I{len(tensor.sizes)}Q", len(tensor.sizes), *tensor.sizes)
        header += struct.pack("<IQ", tensor.kind, offset)
        body += tensor.data + b"\0" * (-len(tensor.data) % alignment)
    return header + b"\0" * (-len(header) % alignment) + body


def vocabulary() -> dict[str, Any]:
    """Return 13 SentencePiece tokens; longer pieces were joined later, so they score less."""
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *LETTERS],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, *(-float(at) for at in range(len(LETTERS)))],
        "tokenizer.ggml.token_type": [2, 3, 3, *[1] * len(LETTERS)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def metadata(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """Return metadata of a model with one layer; ``changes`` by key, ``__`` for a dot; None removes a key."""
    keys: dict[str, Any] = {
        "general.architecture": architecture,
        f"{architecture}.block_count": 1,
        f"{architecture}.context_length": 64,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": INTER,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        **vocabulary(),
    }
    keys |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in keys.items() if value is not None}


def shapes() -> dict[str, tuple[int, ...]]:
    head_dim = HIDDEN // HEADS
    return {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (KV_HEADS * head_dim, HIDDEN),
        "blk.0.attn_v.weight": (KV_HEADS * head_dim, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (INTER, HIDDEN),
        "blk.0.ffn_up.weight": (INTER, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, INTER),
    }


def values(seed: int = 0) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes().items()}


def tensor(name: str, array: NDArray[np.float32], **changes: Any) -> RawTensor:
    fields: dict[str, Any] = {"name": name.encode(), "sizes": array.shape[::-1], "kind": F32, "data": array.tobytes()}
    return RawTensor(**(fields | changes))


def write_model(folder: Path, architecture: str = "llama", **changes: Any) -> Path:
    """Write a sound file of float32."""
    path = folder / "model.gguf"
    path.write_bytes(file_bytes(metadata(architecture, **changes), [tensor(*item) for item in values().items()]))
    return path
