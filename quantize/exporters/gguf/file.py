"""Write GGUF files: the header, and GGML's blocks of the codes that a bundle holds.

Source: docs/gguf.md of ggml; ``block_tq2_0``, ``block_q2_0``, ``block_q4_0``, ``block_q4_K`` and ``block_q8_0`` of its
ggml-common.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.atomic import new_file
from edgedec.errors import UnsupportedError
from edgedec.progress import Progress, silent
from edgedec.quantize.readers.gguf.blocks import KINDS, Kind

__all__ = [
    "BF16",
    "F16",
    "F32",
    "Q2_0",
    "Q4_0",
    "Q4_K",
    "Q8_0",
    "TQ2_0",
    "PlannedGgufTensor",
    "Value",
    "q2_0",
    "q4_0",
    "q4_k",
    "q8_0",
    "tq2_0",
    "write_gguf",
]

Array = NDArray[Any]
Value = str | int | float | bool | Sequence[str] | Sequence[float] | Sequence[int]

F32, F16, BF16, Q2_0, Q4_0, Q4_K, Q8_0, TQ2_0 = (KINDS[number] for number in (0, 1, 30, 42, 2, 12, 8, 35))
_ALIGNMENT = 32  # default alignment of tensors in bytes
_MAGIC, _VERSION = b"GGUF", 3
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


@dataclass(frozen=True, kw_only=True)
class PlannedGgufTensor:
    """A tensor to write. ``make`` returns its bytes, uint8 [rows, bytes of a row], when it is written."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    make: Callable[[], Array]


def _scales(name: str, values: Array, blocks: int) -> Array:
    """Convert scales float32 [rows or 1, blocks or 1] to the float16 of every block, uint8 [rows or 1, blocks, 2]."""
    with np.errstate(over="ignore"):
        half = np.broadcast_to(values.astype("<f2"), (len(values), blocks))
    if not np.isfinite(half).all():
        raise UnsupportedError(f"tensor {name}: a scale of {np.abs(values).max():g} does not fit into GGML's float16")
    if (np.abs(half)[np.broadcast_to(values, half.shape) != 0] < np.finfo(np.float16).smallest_normal).any():
        raise UnsupportedError(f"tensor {name}: a scale is too small for GGML's float16; export it as safetensors")
    return np.ascontiguousarray(half).view(np.uint8).reshape(len(half), blocks, 2)


def q8_0(name: str, codes: NDArray[np.int8], scale: NDArray[np.float32]) -> Array:
    """Return Q8_0's blocks of a scale and 32 codes, uint8 [out, bytes], for codes int8 [out, in], scale float32 [out]."""
    outputs, inputs = codes.shape
    blocks = np.empty((outputs, inputs // 32, 34), np.uint8)
    blocks[..., :2] = _scales(name, scale[:, None], inputs // 32)
    blocks[..., 2:] = np.ascontiguousarray(codes).view(np.uint8).reshape(outputs, -1, 32)
    return blocks.reshape(outputs, -1)


def q4_0(codes: NDArray[np.uint8], scale: NDArray[np.float16]) -> Array:
    """Return Q4_0's blocks of a scale and 32 codes, uint8 [out, bytes], for codes [out, in] 0..15, scale [out, in / 32].

    Byte j holds the codes of columns j (lower bits) and j + 16.
    """
    outputs, inputs = codes.shape
    halves = codes.reshape(outputs, inputs // 32, 2, 16)
    blocks = np.empty((outputs, inputs // 32, 18), np.uint8)
    blocks[..., :2] = np.ascontiguousarray(scale, "<f2").view(np.uint8).reshape(outputs, -1, 2)
    blocks[..., 2:] = halves[..., 0, :] | halves[..., 1, :] << 4
    return blocks.reshape(outputs, -1)


def q4_k(codes: NDArray[np.uint8], factors: NDArray[np.float16], steps: NDArray[np.uint8]) -> Array:
    """Return Q4_K's blocks of 256 codes, uint8 [out, bytes].

    The arguments are codes [out, in] 0..15, factors [out, in / 256, 2] and steps [out, in / 32, 2] 0..63. The two factors
    are followed by the steps in 12 bytes: four bytes with the lower 6 bits of the scales of groups 0 to 3, four of their
    minima, and four with the lower 4 bits of scale and minimum of groups 4 to 7, whose upper 2 bits are in the bytes before.
    Byte j of each 32 that follow holds the codes of columns j and j + 32 of 64 columns.
    """
    outputs, inputs = codes.shape
    blocks = np.empty((outputs, inputs // 256, 144), np.uint8)
    blocks[..., :4] = np.ascontiguousarray(factors, "<f2").view(np.uint8).reshape(outputs, -1, 4)
    groups = steps.reshape(outputs, -1, 2, 4, 2)
    first, last = groups[:, :, 0], groups[:, :, 1]  # groups 0 to 3, and 4 to 7: [..., group, scale and minimum]
    blocks[..., 4:8] = first[..., 0] | last[..., 0] >> 4 << 6
    blocks[..., 8:12] = first[..., 1] | last[..., 1] >> 4 << 6
    blocks[..., 12:16] = last[..., 0] & 15 | last[..., 1] << 4
    halves = codes.reshape(outputs, inputs // 256, 4, 2, 32)
    blocks[..., 16:] = (halves[..., 0, :] | halves[..., 1, :] << 4).reshape(outputs, -1, 128)
    return blocks.reshape(outputs, -1)


def tq2_0(name: str, trits: NDArray[np.int8], scale: NDArray[np.float32]) -> Array:
    """Return TQ2_0's blocks of codes and a scale, uint8 [out, bytes].

    The arguments are trits int8 [out, in] and scale float32 [out or 1, in / 256 or 1]. A code is trit + 1. Byte m of a half
    block of 32 bytes holds the codes of columns m, m + 32, m + 64 and m + 96 from its lowest bits upwards.
    """
    outputs, inputs = trits.shape
    blocks = np.empty((outputs, inputs // 256, 66), np.uint8)
    four = (trits + 1).view(np.uint8).reshape(outputs, -1, 2, 4, 32)
    packed = four[..., 0, :] | four[..., 1, :] << 2 | four[..., 2, :] << 4 | four[..., 3, :] << 6
    blocks[..., :64] = packed.reshape(outputs, -1, 64)
    blocks[..., 64:] = _scales(name, scale, inputs // 256)
    return blocks.reshape(outputs, -1)


def q2_0(name: str, trits: NDArray[np.int8], scale: NDArray[np.float32]) -> Array:
    """Return Q2_0's blocks of a scale and 64 codes, uint8 [out, bytes].

    The arguments are trits int8 [out, in] and scale float32 [out or 1, in / 64 or 1]. A code is trit + 1. A byte holds four
    neighbouring columns, the first in its lowest bits.
    """
    outputs, inputs = trits.shape
    blocks = np.empty((outputs, inputs // 64, 18), np.uint8)
    blocks[..., :2] = _scales(name, scale, inputs // 64)
    four = (trits + 1).view(np.uint8).reshape(outputs, -1, 16, 4)
    blocks[..., 2:] = four[..., 0] | four[..., 1] << 2 | four[..., 2] << 4 | four[..., 3] << 6
    return blocks.reshape(outputs, -1)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _number(value: float) -> bytes:
    return struct.pack("<f" if isinstance(value, float) else "<i", value)


def _value(value: Value) -> tuple[int, bytes]:
    """Return GGUF's number of the type, and the bytes. Integers in an array are signed, other integers are unsigned."""
    if isinstance(value, str):
        return _STRING, _string(value)
    if isinstance(value, bool):
        return _BOOL, struct.pack("<B", value)
    if isinstance(value, float):
        return _FLOAT32, struct.pack("<f", value)
    if isinstance(value, int):
        return _UINT32, struct.pack("<I", value)
    kind = _STRING if not value else _value(value[0])[0]
    kind = _INT32 if kind == _UINT32 else kind
    elements = b"".join(_string(one) if isinstance(one, str) else _number(one) for one in value)
    return _ARRAY, struct.pack("<IQ", kind, len(value)) + elements


def _header(metadata: Mapping[str, Value], tensors: Sequence[PlannedGgufTensor]) -> bytes:
    """Return the bytes before the first tensor. The sizes of a tensor are listed from the innermost outwards."""
    parts = [_MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        number, data = _value(value)
        parts += [_string(key), struct.pack("<I", number), data]
    at = 0
    for tensor in tensors:
        sizes = tensor.shape[::-1]
        parts += [_string(tensor.name), struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)]
        parts.append(struct.pack("<IQ", tensor.kind.number, at))
        at += -(-tensor.kind.nbytes(tensor.shape) // _ALIGNMENT) * _ALIGNMENT
    header = b"".join(parts)
    return header + b"\0" * (-len(header) % _ALIGNMENT)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Sequence[PlannedGgufTensor],
    progress: Progress = silent,
    *,
    check: Callable[[Path], None] | None = None,
) -> None:
    """Write ``path``, completely or not at all, with one tensor in memory at a time.

    ``check`` is called with the finished file before it gets its name; nothing remains if it raises an error.

    Raises:
        EdgedecError: the disk is full, or permission is denied; no partial output remains.
    """
    with new_file(path) as partial:
        with partial.open("wb") as file:
            file.write(_header(metadata, tensors))
            for done, tensor in enumerate(tensors, start=1):
                data = tensor.make()
                assert data.nbytes == tensor.kind.nbytes(tensor.shape), f"{tensor.name}: {data.nbytes} bytes"
                file.write(np.ascontiguousarray(data).view(np.uint8).reshape(-1).data)
                file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                progress(tensor.name, done, len(tensors))
        if check is not None:
            check(partial)
