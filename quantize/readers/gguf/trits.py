"""Unpack the codes of GGML's ternary types: TQ1_0, TQ2_0 and Q2_0, and PrismML's PQ2_0 and PTQ1_0.

A block has one float16 scale. Types with base-3 digits hold -1, 0 and 1. Types with two bits have a fourth code, 3, which
is an error in TQ2_0, and in Q2_0 and PQ2_0 the value 2, which no trit has.

Source: ``block_tq1_0``, ``block_tq2_0`` and ``block_q2_0`` of ggml's ggml-common.h; ``block_pq2_0`` and ``block_ptq1_0`` of
PrismML's llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError

__all__ = ["CODES", "TWO_BIT", "float16_at"]

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]
U8 = NDArray[np.uint8]

_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)
_SHIFTS = np.array([0, 2, 4, 6], np.uint8)
# Runs of bytes with base-3 digits: first byte, bytes, digits of a byte.
_TQ1_0 = ((0, 32, 5), (32, 16, 5), (48, 4, 4))
_PTQ1_0 = ((0, 16, 5), (16, 8, 5), (24, 2, 4))


def float16_at(blocks: U8, at: int) -> F32:
    """Return the float16 at byte ``at`` of each block as float32 [rows, blocks, 1]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2").astype(np.float32)


def _base_3(runs: tuple[tuple[int, int, int], ...], blocks: U8) -> tuple[I8, F32]:
    """Unpack digits: digit n of a byte, from the highest of five, is ((byte * 3^n mod 256) * 3) >> 8.

    A run of bytes holds as many columns for each digit, and the columns of the first digit come first. The scale follows
    the last run.
    """
    parts = []
    for start, width, digits in runs:
        some = blocks[..., None, start : start + width] * _POWERS[:digits, None]  # wraps around
        parts.append((some.astype(np.uint16) * 3 >> 8).reshape(*blocks.shape[:-1], -1))
    start, width, _ = runs[-1]
    return np.concatenate(parts, axis=-1).astype(np.int8) - np.int8(1), float16_at(blocks, start + width)


def _tq2_0(blocks: U8) -> tuple[I8, F32]:
    """Unpack TQ2_0: byte m of each 32 holds columns m, m + 32, m + 64 and m + 96, then the scale."""
    four = blocks[..., :64].reshape(*blocks.shape[:-1], 2, 1, 32)
    codes = four >> _SHIFTS[:, None] & 3
    if (codes == 3).any():
        raise BundleError("a code is 3, which no trit has; the file is damaged")
    return codes.reshape(*blocks.shape[:-1], 256).view(np.int8) - np.int8(1), float16_at(blocks, 64)


def _q2_0(blocks: U8) -> tuple[I8, F32]:
    """Unpack Q2_0 or PQ2_0: the scale, then four neighbouring columns in each byte, the first in the lowest bits."""
    codes = blocks[..., 2:, None] >> _SHIFTS & 3
    return codes.reshape(*blocks.shape[:-1], -1).view(np.int8) - np.int8(1), float16_at(blocks, 0)


# Functions from blocks uint8 [rows, blocks, bytes] to codes int8 [rows, blocks, columns] in -1..1, or in -1..2 for the types
# in ``TWO_BIT``, and scales float32 [rows, blocks, 1].
CODES: dict[str, Callable[[U8], tuple[I8, F32]]] = {
    "TQ1_0": partial(_base_3, _TQ1_0),
    "TQ2_0": _tq2_0,
    "Q2_0": _q2_0,
    "PQ2_0": _q2_0,
    "PTQ1_0": partial(_base_3, _PTQ1_0),
}
TWO_BIT = ("Q2_0", "PQ2_0")
