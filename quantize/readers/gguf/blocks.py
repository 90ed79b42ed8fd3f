"""Decode GGML's tensor types: their sizes in bytes and the values of their blocks.

This module decodes F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q6_K, and the ternary types of ``trits``. Other types are decoded by
the ``gguf`` package if it is installed. The exception is bitnet.cpp's I2_S, whose number GGML no longer defines; see
``i2s``. A tensor is decoded some rows at a time, which takes at most a few MB in addition to the result.

Source: ``block_*`` of ggml's ggml-common.h; ``dequantize_row_*`` of its ggml-quants.c.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.host.install_hint import install_extra
from edgedec.quantize.readers.gguf.trits import CODES, float16_at
from edgedec.quantize.readers.untrusted import read_array
from edgedec.schemes import Int4Scheme

__all__ = ["INT4", "KINDS", "Q2_0_LAYOUTS", "Codes", "Kind", "decode", "int4_parts", "read_codes"]

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A type of GGML with its number.

    A row takes ``block_bytes`` for each ``block`` values, and the tensor ends with ``tail_bytes``.
    """

    number: int
    name: str
    block: int
    block_bytes: int
    tail_bytes: int = 0

    def nbytes(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) // self.block * self.block_bytes + self.tail_bytes

    def row_bytes(self, columns: int) -> int:
        return columns // self.block * self.block_bytes


_TYPES = """
0 F32 1 4
1 F16 1 2
2 Q4_0 32 18
3 Q4_1 32 20
6 Q5_0 32 22
7 Q5_1 32 24
8 Q8_0 32 34
9 Q8_1 32 40
10 Q2_K 256 84
11 Q3_K 256 110
12 Q4_K 256 144
13 Q5_K 256 176
14 Q6_K 256 210
15 Q8_K 256 292
16 IQ2_XXS 256 66
17 IQ2_XS 256 74
18 IQ3_XXS 256 98
19 IQ1_S 256 50
20 IQ4_NL 32 18
21 IQ3_S 256 110
22 IQ2_S 256 82
23 IQ4_XS 256 136
24 I8 1 1
25 I16 1 2
26 I32 1 4
27 I64 1 8
28 F64 1 8
29 IQ1_M 256 56
30 BF16 1 2
34 TQ1_0 256 54
35 TQ2_0 256 66
36 I2_S 64 16 32
39 MXFP4 32 17
42 Q2_0 64 18
142 PQ2_0 128 34
143 PTQ1_0 128 28
"""


def _kinds() -> Iterator[Kind]:
    for row in _TYPES.strip().splitlines():
        number, name, block, block_bytes, *tail = row.split()
        yield Kind(
            number=int(number),
            name=name,
            block=int(block),
            block_bytes=int(block_bytes),
            tail_bytes=sum(map(int, tail)),
        )


KINDS = {kind.number: kind for kind in _kinds()}
# The number 42 stands for GGML's blocks of 64 values, and in PrismML's earlier files for blocks of 128 (those of PQ2_0).
Q2_0_LAYOUTS = (KINDS[42], Kind(number=42, name="Q2_0", block=128, block_bytes=34))
_FLOATS = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}


def _q8_0(blocks: U8) -> F32:
    values: F32 = float16_at(blocks, 0) * blocks[..., 2:].view(np.int8)
    return values


def _q4_0_codes(blocks: U8) -> U8:
    """Return the codes of Q4_0, uint8 [rows, blocks, 32]: byte j holds those of columns j (low half) and j + 16."""
    return np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1)


def _q4_0(blocks: U8) -> F32:
    values: F32 = float16_at(blocks, 0) * (_q4_0_codes(blocks).view(np.int8) - np.int8(8))
    return values


def _q4_k_codes(blocks: U8) -> U8:
    """Return the codes of Q4_K, uint8 [rows, blocks, 8, 32]: byte j of each 32 holds those of two groups, low half first."""
    quads = blocks[..., 16:].reshape(*blocks.shape[:-1], 4, 1, 32)
    halves = np.concatenate([quads & 15, quads >> 4], axis=-2)
    return halves.reshape(*blocks.shape[:-1], 8, 32)


def _q4_k_steps(blocks: U8) -> U8:
    """Return scales and minima of Q4_K's groups as integers 0..63, uint8 [rows, blocks, 8, 2].

    Of 12 bytes, the first four hold the scales of groups 0 to 3 in their lower six bits, and the next four their minima.
    The last four hold the lower four bits of scale and minimum of groups 4 to 7, whose upper bits are the upper two bits
    of the bytes before.
    """
    first, second, third = (blocks[..., at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    return np.stack([scales, minima], axis=-1)


def _q4_k(blocks: U8) -> F32:
    steps = _q4_k_steps(blocks).astype(np.float32)
    scale, minimum = float16_at(blocks, 0) * steps[..., 0], float16_at(blocks, 2) * steps[..., 1]
    values: F32 = scale[..., None] * _q4_k_codes(blocks) - minimum[..., None]
    return values


def _q6_k(blocks: U8) -> F32:
    """Decode Q6_K: two halves of 128 columns, each with 64 bytes of lower and 32 bytes of upper bits; 16 int8 scales."""
    shape = blocks.shape[:-1]
    lower = blocks[..., :128].reshape(*shape, 2, 2, 32)
    upper = blocks[..., 128:192].reshape(*shape, 2, 1, 32)
    four = np.concatenate([lower & 15, lower >> 4], axis=-2)  # [..., half, quarter, 32]
    codes = four | (upper >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3) << 4
    steps = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    scale = float16_at(blocks, 208) * steps
    signed = codes.reshape(*shape, 16, 16).view(np.int8) - np.int8(32)
    values: F32 = scale[..., None] * signed
    return values


def int4_parts(path: Path, where: str, kind: Kind, offset: int, shape: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    """Return a matrix of Q4_0 or Q4_K [rows, columns] as the parts of its ``Int4Scheme``, which say the same.

    Raises:
        BundleError: the file has shrunk.
    """
    scheme, (rows, columns) = INT4[kind.name], shape
    parts = {name: np.empty(part.shape, part.dtype) for name, part in scheme.parts(shape).items()}
    for start, blocks in _chunks(path, where, kind, offset, rows, columns):
        some = slice(start, start + len(blocks))
        codes = _q4_k_codes(blocks) if scheme.offset else _q4_0_codes(blocks)
        parts["codes"][some] = scheme.pack(codes.reshape(len(blocks), columns))
        if scheme.offset:
            parts["factors"][some] = np.ascontiguousarray(blocks[..., :4]).view("<f2").reshape(len(blocks), -1, 2)
            parts["steps"][some] = _q4_k_steps(blocks).reshape(len(blocks), -1, 2)
        else:
            parts["scale"][some] = np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0]
    return parts


def _product(codes_of: Callable[[U8], tuple[NDArray[np.int8], F32]], blocks: U8) -> F32:
    codes, scale = codes_of(blocks)
    values: F32 = scale * codes
    return values


_DECODERS: dict[str, Callable[[U8], F32]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
    **{name: partial(_product, codes_of) for name, codes_of in CODES.items()},
}
INT4 = {"Q4_0": Int4Scheme(), "Q4_K": Int4Scheme(offset=True)}  # types that are forms of int4


def _by_package(kind: Kind, where: str) -> Callable[[U8], F32]:
    """Return a decoder that uses the ``gguf`` package, which supports all types that models use."""
    try:
        quants: Any = importlib.import_module("gguf.quants")
        types: Any = importlib.import_module("gguf").GGMLQuantizationType
    except ImportError:
        raise UnsupportedError(
            f"{where} is {kind.name}; reading it needs the package gguf; run: {install_extra('gguf')}, "
            f"or save the model as F16, {', '.join(_DECODERS)}"
        ) from None

    def decoded(blocks: U8) -> F32:
        try:
            with np.errstate(all="ignore"):
                array = quants.dequantize(blocks.reshape(len(blocks), -1), types(kind.number))
        except (NotImplementedError, ValueError) as error:
            raise UnsupportedError(f"{kind.name} cannot be decoded ({error}); save the model as F16 or Q8_0") from None
        values: F32 = np.asarray(array, np.float32)
        return values

    return decoded


def decode(path: Path, where: str, kind: Kind, offset: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Decode a tensor of ``shape``, whose last dimension runs along rows, to float32, or its own float16 or bfloat16.

    ``where`` names the tensor in messages. The caller must have checked that the file holds the tensor.

    Raises:
        BundleError: the file has shrunk, or a block is invalid.
        UnsupportedError: the type cannot be decoded.
    """
    if kind.name in _FLOATS:
        flat = read_array(path, offset=offset, count=math.prod(shape), dtype=_FLOATS[kind.name], what=where)
        return flat.reshape(shape)
    decoder = _DECODERS.get(kind.name) or _by_package(kind, f"{path}: {where}")
    columns = shape[-1]
    rows = math.prod(shape[:-1])
    try:
        values = np.empty((rows, columns), np.float32)
    except MemoryError:
        raise BundleError(
            f"{path}: {where} needs {rows * columns * 4} bytes of memory, more than is available"
        ) from None
    for start, blocks in _chunks(path, where, kind, offset, rows, columns):
        try:
            with np.errstate(all="ignore"):  # NaN and infinity are refused later
                values[start : start + len(blocks)] = decoder(blocks).reshape(len(blocks), columns)
        except (BundleError, UnsupportedError) as error:
            raise type(error)(f"{path}: {where}: {error}") from None
    return values.reshape(shape)


def _chunks(path: Path, where: str, kind: Kind, offset: int, rows: int, columns: int) -> Iterator[tuple[int, U8]]:
    """Yield (first row, uint8 [rows, blocks, bytes of a block])."""
    row_bytes = kind.row_bytes(columns)
    some = max(1, _CHUNK_BYTES // row_bytes)
    for start in range(0, rows, some):
        count = min(some, rows - start)
        data = read_array(
            path, offset=offset + start * row_bytes, count=count * row_bytes, dtype=np.dtype(np.uint8), what=where
        )
        yield start, data.reshape(count, -1, kind.block_bytes)


class Codes(NamedTuple):
    """A matrix of codes, int8 [rows, columns], and the scales of its blocks, float32 [rows, blocks]."""

    codes: NDArray[np.int8]
    scales: F32


def read_codes(path: Path, where: str, kind: Kind, offset: int, shape: tuple[int, ...]) -> Codes:
    """Return the codes of a matrix of a ternary type (``trits.CODES``), and its scales, which may be negative.

    Raises:
        BundleError: the file has shrunk, or a scale is not finite, or a code is one that the type does not have.
    """
    rows, columns = shape
    codes, scales = np.empty((rows, columns), np.int8), np.empty((rows, columns // kind.block), np.float32)
    for start, blocks in _chunks(path, where, kind, offset, rows, columns):
        some = slice(start, start + len(blocks))
        try:
            part, factors = CODES[kind.name](blocks)
        except BundleError as error:
            raise BundleError(f"{path}: {where}: {error}") from None
        if not np.isfinite(factors).all():
            wrong = start + int(np.argwhere(~np.isfinite(factors))[0, 0])
            raise BundleError(f"{path}: {where}: the scale of a block in row {wrong} is NaN or infinity")
        codes[some], scales[some] = part.reshape(len(blocks), columns), factors[..., 0]
    return Codes(codes, scales)
