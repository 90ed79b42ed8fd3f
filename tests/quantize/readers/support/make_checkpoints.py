"""Make small valid checkpoints for the tests of the readers, and damaged ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Tensors = dict[str, NDArray[Any]]

DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
LETTERS = (" ", "t", "h", "e", "a", "th", "the", " the", " a", "he")


def small_pieces(with_bytes: bool = False) -> list[tuple[str, float]]:
    """Return (piece, score) of a vocabulary that joins; longer pieces were joined later, so they score less."""
    bytes_ = [(f"<0x{byte:02X}>", 0.0) for byte in range(256)] if with_bytes else []
    return [
        ("<unk>", 0.0),
        ("<s>", 0.0),
        ("</s>", 0.0),
        *bytes_,
        *((text, -float(i)) for i, text in enumerate(LETTERS)),
    ]


def tokenizer_bin(pieces: Sequence[tuple[str, float]], longest: int | None = None) -> bytes:
    """Write it as llama2.c's tokenizer.py does."""
    texts = [f"\n{text}\n" if text in ("<s>", "</s>") else text for text, _ in pieces]
    encoded = [text.encode() for text in texts]
    records = (struct.pack("<fi", score, len(text)) + text for (_, score), text in zip(pieces, encoded, strict=True))
    return struct.pack("<i", longest or max(map(len, encoded))) + b"".join(records)


def llama2c_header(version: int, *, tied: bool = True, group_size: int = 4, **fields: int) -> bytes:
    """Return the header of a model with two layers of 8, unless ``fields`` says otherwise."""
    names = ("dim", "hidden_dim", "layers", "heads", "kv_heads", "vocab_size", "positions")
    values = dict(zip(names, (8, 12, 2, 2, 1, 13, 6), strict=True)) | fields
    numbers = struct.pack("<7i", *(values[name] for name in names))
    if version == 0:
        return numbers
    flags = struct.pack("<B", tied) + (struct.pack("<i", group_size) if version == 2 else b"")
    return (struct.pack("<Ii", 0x616B3432, version) + numbers + flags).ljust(256, b"\0")


def llama2c_tensors(tied: bool = True, seed: int = 0) -> Tensors:
    """Return random weights for ``llama2c_header``'s own sizes, by Hugging Face name."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (13, 8), "model.norm.weight": (8,)}
    for layer in range(2):
        at = f"model.layers.{layer}."
        shapes |= {at + "input_layernorm.weight": (8,), at + "post_attention_layernorm.weight": (8,)}
        shapes |= {f"{at}self_attn.{name}_proj.weight": (8, 8) for name in "qo"}
        shapes |= {f"{at}self_attn.{name}_proj.weight": (4, 8) for name in "kv"}
        shapes |= {f"{at}mlp.{name}_proj.weight": (12, 8) for name in ("gate", "up")}
        shapes |= {f"{at}mlp.down_proj.weight": (8, 12)}
    if not tied:
        shapes["lm_head.weight"] = (13, 8)
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def llama2c_file(version: int, tensors: Tensors, *, group_size: int = 4) -> bytes:
    """Return the whole file, written one tensor after the other as llama2.c's export.py does."""
    tied = "lm_head.weight" not in tensors

    def layers(name: str) -> list[NDArray[Any]]:
        return [tensors[f"model.layers.{layer}.{name}.weight"] for layer in (0, 1)]

    embed, final = tensors["model.embed_tokens.weight"], tensors["model.norm.weight"]
    att_norm, ffn_norm = layers("input_layernorm"), layers("post_attention_layernorm")
    attention = [array for name in "qkvo" for array in layers(f"self_attn.{name}_proj")]
    mlp = [array for name in ("gate", "down", "up") for array in layers(f"mlp.{name}_proj")]
    head = [] if tied else [tensors["lm_head.weight"]]
    header = llama2c_header(version, tied=tied, group_size=group_size, vocab_size=13 if tied or version else -13)
    if version == 0:
        tables = [np.zeros((6, 2), np.float32)] * 2
        return header + b"".join(
            array.tobytes() for array in (embed, *att_norm, *attention, *ffn_norm, *mlp, final, *tables, *head)
        )
    norms = b"".join(array.tobytes() for array in (*att_norm, *ffn_norm, final))
    matrices = (embed, *attention, *mlp, *head)
    if version == 1:
        return header + norms + b"".join(array.tobytes() for array in matrices)
    return header + norms + b"".join(_q80(array, group_size) for array in matrices)


def _q80(array: NDArray[Any], group_size: int) -> bytes:
    codes, scales = quantize_q80(array, group_size)
    return codes.tobytes() + scales.tobytes()


def quantize_q80(array: NDArray[Any], group_size: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return codes and scales of llama2.c's Q8_0: groups of consecutive values, across rows."""
    groups = array.reshape(-1, group_size)
    scales = np.abs(groups).max(axis=1).astype(np.float32) / np.float32(127)
    return np.rint(groups / scales[:, np.newaxis]).astype(np.int8), scales


def hf_config(**changes: Any) -> dict[str, Any]:
    return {"model_type": "llama", "hidden_size": 8, "vocab_size": 13, "bos_token_id": 1, "eos_token_id": 2} | changes


def hf_tokenizer(**changes: Any) -> dict[str, Any]:
    """Return a ``tokenizer.json`` of 13 tokens: no bytes, no joins, BOS first."""
    vocab = {text: index for index, (text, _) in enumerate(small_pieces())}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **special} for i, text in enumerate(("<unk>", "<s>", "</s>"))],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": None,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "<unk>", "byte_fallback": False},
    } | changes


def hf_tensors(dtype: str = "F32", seed: int = 0) -> Tensors:
    rng = np.random.default_rng(seed)
    shapes = {
        "model.embed_tokens.weight": (13, 8),
        "model.norm.weight": (8,),
        "model.layers.0.mlp.up_proj.weight": (3, 8),
    }
    return {name: rng.standard_normal(shape).astype(DTYPES[dtype]) for name, shape in shapes.items()}


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def write_hf(folder: Path, tensors: Tensors | None = None, *, shards: int = 0, **config: Any) -> Path:
    """Write a whole folder; ``shards`` adds an index and splits the tensors over that many files, from the last file
    on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = hf_tensors() if tensors is None else tensors
    write_json(folder / "config.json", hf_config(**config))
    write_json(folder / "tokenizer.json", hf_tokenizer())
    if not shards:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[shards - 1 - shard :: shards])
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return folder


def write_llama2c(folder: Path, version: int = 0, *, tied: bool = True) -> Path:
    """Write ``model.bin`` with ``tokenizer.bin`` beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.bin").write_bytes(tokenizer_bin(small_pieces()))
    path = folder / "model.bin"
    path.write_bytes(llama2c_file(version, llama2c_tensors(tied)))
    return path


def safetensors_bytes(header: Mapping[str, Any] | bytes, body: bytes = b"", *, length: int | None = None) -> bytes:
    """Return a safetensors file with ``header``, true or not; ``length`` replaces the true header length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body
