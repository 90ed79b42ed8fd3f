"""Write random checkpoints of a published shape that both edgedec and llama.cpp's tools can read.

The class is that of bitnet_b1_58-large (``BitnetForCausalLM``), whose float weights both llama.cpp's converter and edgedec
round to ternary by their absmean. With ``native`` the matrices hold only -s, 0 and s, and the class is Llama's, whose
converter does not change them. A checkpoint is written shard by shard, and existing complete shards are reused. Speed and
memory do not depend on the values of the weights.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.atomic import new_file
from edgedec.errors import EdgedecError, UsageError
from edgedec.families import build_graph
from edgedec.progress import Progress, silent

__all__ = ["SHAPES", "Shape", "checkpoint_bytes", "remove_checkpoint", "write_checkpoint"]

REVISION = 1  # revision of the written checkpoints; part of the folder's name
_TEMPLATE_NORMS = {"attn_sub_norm": "inner_attn_ln", "ffn_sub_norm": "ffn_layernorm"}  # names in BitnetForCausalLM
_PIECES, _BYTE_PIECES = 32000, 256  # sizes of the vocabulary; the rows after the pieces are padding, as in the original
_STD = 0.02  # standard deviation of the weights
_AT_ONCE = 1 << 22  # values that are written at a time
_SPARE_BYTES = 2 << 30  # disk space that must stay free
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_BPE = 2


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a model, and the number of shards of its checkpoint."""

    name: str
    hidden: int
    inter: int
    layers: int
    heads: int
    vocab: int = 32002
    tied: bool = True
    shards: int = 1

    def config(self, native: bool) -> dict[str, Any]:
        """Return the content of a Hugging Face ``config.json``."""
        return {
            "architectures": ["LlamaForCausalLM" if native else "BitnetForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.inter,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "vocab_size": self.vocab,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "float16",
            "bos_token_id": 1,
            "eos_token_id": 2,
        }

    def tensors(self, native: bool) -> dict[str, tuple[int, ...]]:
        """Return shapes by the names in the files, in the order of the files."""
        config = self.config(native) | ({} if native else {"model_type": "bitnet"})
        shapes = {}
        for name, spec in build_graph(config).weights.items():
            place, _, parameter = name.rpartition(".")
            place, _, part = place.rpartition(".")
            shapes[f"{place}.{_TEMPLATE_NORMS.get(part, part)}.{parameter}".lstrip(".")] = spec.shape
        return shapes


SHAPES: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape(name="small", hidden=512, inter=1024, layers=6, heads=8),
        Shape(name="0.73b", hidden=1536, inter=4096, layers=24, heads=16),
        Shape(name="7b", hidden=4096, inter=11008, layers=32, heads=32, tied=False, shards=8),
    )
}


def checkpoint_bytes(shape: Shape, native: bool) -> int:
    """Return the size in bytes of all tensors in float16."""
    return sum(2 * int(np.prod(sizes)) for sizes in shape.tensors(native).values())


def _cut(shape: Shape, native: bool) -> list[dict[str, tuple[int, ...]]]:
    """Return the tensors of each shard, in order; the shards have about the same size."""
    tensors = shape.tensors(native)
    share, at = checkpoint_bytes(shape, native) / shape.shards, 0
    shards: list[dict[str, tuple[int, ...]]] = [{} for _ in range(shape.shards)]
    for name, sizes in tensors.items():
        shards[min(int(at / share), shape.shards - 1)][name] = sizes
        at += 2 * int(np.prod(sizes))
    return [shard for shard in shards if shard]


@cache
def _pool(ternary: bool) -> NDArray[np.float16]:
    """Return random values, from which all matrices take pieces, because drawing each matrix would take minutes."""
    rng = np.random.default_rng(REVISION)
    if ternary:
        trits: NDArray[np.float16] = np.array([-_STD, 0, _STD], np.float16)[rng.integers(0, 3, 2 * _AT_ONCE, np.uint8)]
        return trits
    return (rng.standard_normal(2 * _AT_ONCE, np.float32) * np.float32(_STD)).astype(np.float16)


def _values(name: str, sizes: tuple[int, ...], seed: list[int], native: bool) -> Iterator[NDArray[np.float16]]:
    """Yield a tensor's values in parts, from places of the pool that ``seed`` determines."""
    count, rng = int(np.prod(sizes)), np.random.default_rng(seed)
    if len(sizes) == 1:
        yield np.ones(sizes, np.float16)
        return
    pool = _pool(native and ".layers." in name)
    for start in range(0, count, _AT_ONCE):
        place = int(rng.integers(_AT_ONCE))
        yield pool[place : place + min(_AT_ONCE, count - start)]


def _write_shard(
    path: Path, tensors: Mapping[str, tuple[int, ...]], number: int, native: bool, progress: Progress
) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, sizes in tensors.items():
        end = at + 2 * int(np.prod(sizes))
        header[name] = {"dtype": "F16", "shape": list(sizes), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with new_file(path) as partial, partial.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for place, (name, sizes) in enumerate(tensors.items()):
            for block in _values(name, sizes, [REVISION, number, place], native):
                file.write(block.data)
            progress(path.name, file.tell(), len(text) + 8 + at)


def _message(number: int, data: bytes) -> bytes:
    """Return a field of a protocol buffer that holds bytes."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _piece(text: str, score: float, kind: int) -> bytes:
    body = _message(1, text.encode()) + struct.pack("<Bf", 2 << 3 | 5, score) + _varint(3 << 3) + _varint(kind)
    return _message(1, body)


def _sentencepiece() -> bytes:
    """Return a BPE model of 32,000 pieces that both programs read: bytes, letters, and words made of letters."""
    pieces = [_piece("<unk>", 0.0, _UNKNOWN), _piece("<s>", 0.0, _CONTROL), _piece("</s>", 0.0, _CONTROL)]
    pieces += [_piece(f"<0x{byte:02X}>", 0.0, _BYTE) for byte in range(_BYTE_PIECES)]
    letters = ["\N{LOWER ONE EIGHTH BLOCK}", *ascii_lowercase]
    words = ("".join(joined) for length in (2, 3, 4) for joined in product(letters, repeat=length))
    count = _PIECES - len(pieces) - len(letters)
    pieces += [_piece(word, -float(rank), _NORMAL) for rank, word in zip(range(count), words, strict=False)]
    pieces += [_piece(letter, -float(count + at), _NORMAL) for at, letter in enumerate(letters)]
    trainer = _varint(3 << 3) + _varint(_BPE) + _varint(4 << 3) + _varint(_PIECES)
    trainer += _varint(35 << 3) + _varint(1)  # byte_fallback
    normalizer = _message(1, b"identity") + _varint(3 << 3) + _varint(1) + _varint(4 << 3) + _varint(0)
    return b"".join(pieces) + _message(2, trainer) + _message(3, normalizer)


def _put(path: Path, data: bytes) -> None:
    if not path.exists():
        with new_file(path) as partial:
            partial.write_bytes(data)


def write_checkpoint(folder: Path, shape: Shape, *, native: bool = False, progress: Progress = silent) -> Path:
    """Write the missing files of a checkpoint and return its folder, which is inside ``folder``.

    Raises:
        UsageError: the disk has too little space.
    """
    home = folder / f"{shape.name}-{'native' if native else 'absmean'}-float16-{REVISION}"
    home.mkdir(parents=True, exist_ok=True)
    shards = _cut(shape, native)
    names = (
        ["model.safetensors"]
        if len(shards) == 1
        else [f"model-{at:05}-of-{len(shards):05}.safetensors" for at in range(1, len(shards) + 1)]
    )
    missing = [at for at, name in enumerate(names) if not (home / name).exists()]
    needed = sum(2 * int(np.prod(sizes)) for at in missing for sizes in shards[at].values())
    status = os.statvfs(home)
    free = status.f_bavail * status.f_frsize
    if needed and free - needed < _SPARE_BYTES:
        raise UsageError(
            f"{home} needs {needed / 1e9:.1f} GB of disk, {free / 1e9:.1f} GB are free; name another folder with --work"
        )
    for at in missing:
        _write_shard(home / names[at], shards[at], at, native, progress)
    if len(shards) > 1:
        index = {name: names[at] for at, shard in enumerate(shards) for name in shard}
        total = {"total_size": checkpoint_bytes(shape, native)}
        _put(home / "model.safetensors.index.json", json.dumps({"metadata": total, "weight_map": index}).encode())
    _put(home / "tokenizer.model", _sentencepiece())
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    _put(home / "tokenizer_config.json", json.dumps(settings).encode())
    _put(home / "config.json", json.dumps(shape.config(native), indent=1).encode())
    return home


def remove_checkpoint(home: Path) -> None:
    """Delete the files that ``write_checkpoint`` wrote, and no others.

    Raises:
        EdgedecError: the folder holds other files.
    """
    for path in home.glob("*"):
        if path.suffix in (".safetensors", ".json", ".model"):
            path.unlink()
    try:
        home.rmdir()
    except OSError as error:
        raise EdgedecError(f"{home} holds other files and cannot be removed: {error.strerror}") from None
