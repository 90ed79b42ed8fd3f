"""Read llama2.c ``.bin`` checkpoints of versions 0 and 1 (float32) and 2 (int8 codes with a float32 scale per group).

Version 0 has a header of 7 int32, in which a negative vocabulary means an untied head, and two unused rotary tables.
Versions 1 and 2 have a header of 256 bytes: the magic ``ak42`` (as a little-endian integer), the version, the same 7
int32, a byte that says whether the head is tied, and in version 2 the group size. In version 2 the norms come first, in
float32; after them each matrix of each layer has all its int8 codes followed by all its scales.

Source: ``export.py`` and ``run.c`` of llama2.c.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.checkpoint import Checkpoint, Makers, TensorInfo
from edgedec.quantize.readers.tokenizers.tokenizer_file import find_tokenizer, read_tokenizer
from edgedec.quantize.readers.untrusted import file_bytes, read_array, read_bytes

__all__ = ["read_llama2c"]

_MAGIC = 0x616B3432
_V0_HEADER_BYTES, _HEADER_BYTES = 28, 256
_MAX_LAYERS = 1024
_MAX_POSITIONS = 1 << 24  # limit on the size of later tables; in versions 1 and 2 the file's size does not bound it
_FLOAT32 = np.dtype("<f4")

_LAYER = "model.layers.{}."
_EMBED, _FINAL_NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_ATTENTION_NORM, _MLP_NORM = _LAYER + "input_layernorm.weight", _LAYER + "post_attention_layernorm.weight"
_QKVO = tuple(f"{_LAYER}self_attn.{name}_proj.weight" for name in "qkvo")
_MLP = tuple(f"{_LAYER}mlp.{name}_proj.weight" for name in ("gate", "down", "up"))
_ROPE_TABLE = ""  # name of a span of the file that holds no tensor


@dataclass(frozen=True, kw_only=True)
class _Header:
    version: int
    dim: int
    hidden_dim: int
    layers: int
    heads: int
    kv_heads: int
    vocab_size: int
    positions: int
    tied: bool
    group_size: int

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


@dataclass(frozen=True, kw_only=True)
class _Block:
    """A contiguous part of the file: one tensor, or one per layer if ``name`` has a placeholder for the layer."""

    name: str
    shape: tuple[int, ...]
    group_size: int  # 0: float32

    @property
    def nbytes(self) -> int:
        """Size of one tensor in bytes."""
        count = math.prod(self.shape)
        return count + count // self.group_size * 4 if self.group_size else count * 4


@dataclass(frozen=True, kw_only=True)
class _Place:
    offset: int
    block: _Block


def read_llama2c(path: Path, tokenizer: Path | None = None) -> Checkpoint:
    """Open a llama2.c checkpoint. Without ``tokenizer`` there must be a ``tokenizer.bin`` beside it.

    Stories end with BOS in models that llama2.c trained, so generation ends at id 1 as well as at id 2.

    Raises:
        BundleError: the header is invalid, or the file has another size than the header says.
        UnsupportedError: the version of the format is not supported.
        UsageError: there is no tokenizer.
    """
    header, start = _read_header(path)
    places = _places(path, header, start)
    checked = read_tokenizer(tokenizer or find_tokenizer(path.parent, "tokenizer.bin"), header.vocab_size)
    pieces = checked.vocabulary.get_vocab_size(with_added_tokens=True)
    # llama2.c itself requires as many pieces as the model has ids.
    if checked.path.suffix == ".bin" and pieces != header.vocab_size:
        raise BundleError(
            f"{checked.path}: has {pieces} pieces for a vocabulary of {header.vocab_size}; "
            "it is truncated, or belongs to another model"
        )
    return Checkpoint(
        source=path,
        config=_config(header),
        tensors={name: TensorInfo(shape=place.block.shape, dtype="float32") for name, place in places.items()},
        read_tensor=Makers({name: partial(_load, path, name, place) for name, place in places.items()}),
        tokenizer_json=checked.json,
        chat_template=None,
        bos_token=checked.vocabulary.id_to_token(1),
        bos_token_id=1,
        eos_token=checked.vocabulary.id_to_token(2),
        eos_token_ids=(2, 1),
    )


def _read_header(path: Path) -> tuple[_Header, int]:
    """Return the header and its size in bytes."""
    size = file_bytes(path)
    if size < _V0_HEADER_BYTES:
        raise BundleError(f"{path}: {size} bytes are too few for the header of a llama2.c checkpoint")
    data = read_bytes(path, offset=0, count=min(size, _HEADER_BYTES), what="the header")
    version = 0
    if struct.unpack_from("<I", data) == (_MAGIC,):
        (version,) = struct.unpack_from("<i", data, 4)
        if version not in (1, 2):
            raise UnsupportedError(f"{path}: version {version} of llama2.c's format is unknown; 0, 1 and 2 are read")
        if size < _HEADER_BYTES:
            raise BundleError(f"{path}: {size} bytes are too few for a header of {_HEADER_BYTES}; it is truncated")
    numbers = struct.unpack_from("<7i", data, 8 if version else 0)
    dim, hidden_dim, layers, heads, kv_heads, vocab_size, positions = numbers
    tied, group_size = 1, 0
    if version == 0:
        tied, vocab_size = int(vocab_size > 0), abs(vocab_size)
    else:
        tied = data[36]
        if tied > 1:
            raise BundleError(f"{path}: the byte that says whether the head is tied must be 0 or 1, not {tied}")
    if version == 2:
        (group_size,) = struct.unpack_from("<i", data, 37)
        if group_size < 1:
            raise BundleError(f"{path}: the group size must be positive, not {group_size}")
    header = _Header(
        version=version,
        dim=dim,
        hidden_dim=hidden_dim,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        vocab_size=vocab_size,
        positions=positions,
        tied=bool(tied),
        group_size=group_size,
    )
    _check(path, header)
    return header, _HEADER_BYTES if version else _V0_HEADER_BYTES


def _check(path: Path, header: _Header) -> None:
    limits = {"layers": _MAX_LAYERS, "positions": _MAX_POSITIONS}
    for field in ("dim", "hidden_dim", "layers", "heads", "kv_heads", "vocab_size", "positions"):
        value, limit = getattr(header, field), limits.get(field, (1 << 31) - 1)
        if not 1 <= value <= limit:
            raise BundleError(
                f"{path}: {field} must be 1 to {limit}, not {value}; this is not a llama2.c checkpoint, or a damaged one"
            )
    if header.dim % (2 * header.heads):
        raise BundleError(f"{path}: dim {header.dim} does not divide into {header.heads} heads of an even width")
    if header.heads % header.kv_heads:
        raise BundleError(f"{path}: {header.heads} heads do not divide among {header.kv_heads} kv heads")


def _blocks(header: _Header) -> Iterator[_Block]:
    """Yield the parts of the file in order."""
    dim, kv_dim, hidden = header.dim, header.head_dim * header.kv_heads, header.hidden_dim
    norms = dict.fromkeys((_ATTENTION_NORM, _MLP_NORM, _FINAL_NORM), (dim,))
    shapes: dict[str, tuple[int, ...]] = {
        **norms,
        **dict(zip(_QKVO, ((dim, dim), (kv_dim, dim), (kv_dim, dim), (dim, dim)), strict=True)),
        **dict(zip(_MLP, ((hidden, dim), (dim, hidden), (hidden, dim)), strict=True)),
        **dict.fromkeys((_EMBED, _HEAD), (header.vocab_size, dim)),
        _ROPE_TABLE: (header.positions, header.head_dim // 2),
    }
    head = () if header.tied else (_HEAD,)
    if header.version == 0:
        order = [_EMBED, _ATTENTION_NORM, *_QKVO, _MLP_NORM, *_MLP, _FINAL_NORM, _ROPE_TABLE, _ROPE_TABLE, *head]
    else:
        order = [_ATTENTION_NORM, _MLP_NORM, _FINAL_NORM, _EMBED, *_QKVO, *_MLP, *head]
    for name in order:
        yield _Block(name=name, shape=shapes[name], group_size=0 if name in norms else header.group_size)


def _places(path: Path, header: _Header, start: int) -> dict[str, _Place]:
    """Return the place of each tensor, after checking that the sizes match the file."""
    blocks = list(_blocks(header))
    for block in blocks:
        if block.group_size and math.prod(block.shape) % block.group_size:
            raise BundleError(
                f"{path}: tensor {block.name.format(0)!r} of shape {block.shape} "
                f"does not divide into groups of {block.group_size}; the header is damaged"
            )
    size = file_bytes(path)
    needed = start + sum(block.nbytes * (header.layers if "{}" in block.name else 1) for block in blocks)
    if needed != size:
        raise BundleError(
            f"{path}: the header ({header.layers} layers of {header.dim}, vocabulary {header.vocab_size}) "
            f"describes {needed} bytes, but the file has {size}; it is truncated, damaged or not a llama2.c checkpoint"
        )
    places: dict[str, _Place] = {}
    at = start
    for block in blocks:
        for layer in range(header.layers if "{}" in block.name else 1):
            places[block.name.format(layer)] = _Place(offset=at, block=block)
            at += block.nbytes
    places.pop(_ROPE_TABLE, None)
    return places


def _load(path: Path, name: str, place: _Place) -> NDArray[Any]:
    block, what = place.block, f"tensor {name!r}"
    count = math.prod(block.shape)
    if not block.group_size:
        flat = read_array(path, offset=place.offset, count=count, dtype=_FLOAT32, what=what)
        return flat.reshape(block.shape)
    groups = count // block.group_size
    codes = read_array(path, offset=place.offset, count=count, dtype=np.dtype(np.int8), what=what)
    scales = read_array(path, offset=place.offset + count, count=groups, dtype=_FLOAT32, what=f"{what} (scales)")
    if not np.isfinite(scales).all():
        group = int(np.argmin(np.isfinite(scales)))
        raise BundleError(f"{path}: {what} has the scale {scales[group]} in group {group}; the file is damaged")
    with np.errstate(over="ignore"):  # a damaged scale may overflow to infinity, which the quantizer reports
        values: NDArray[np.float32] = codes.reshape(groups, -1) * scales[:, np.newaxis]
    return values.reshape(block.shape)


def _config(header: _Header) -> dict[str, Any]:
    """Return the equivalent ``config.json``. llama2.c fixes the rotary base, the epsilon and the activation."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": header.dim,
        "intermediate_size": header.hidden_dim,
        "num_hidden_layers": header.layers,
        "num_attention_heads": header.heads,
        "num_key_value_heads": header.kv_heads,
        "head_dim": header.head_dim,
        "vocab_size": header.vocab_size,
        "max_position_embeddings": header.positions,
        "rope_theta": 10000.0,
        "rope_interleaved": True,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": header.tied,
        "bos_token_id": 1,
        "eos_token_id": [2, 1],
    }
