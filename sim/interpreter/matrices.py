"""Matrices unpacked from their beats, and the scaling of their products with codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.compiler import int8_image, ternary_image
from edgedec.hw.compiler.int8_image import Int8Layout
from edgedec.hw.compiler.ternary_image import TernaryLayout
from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.hw.isa.instructions import Instruction, Sink
from edgedec.reference.integer_profile.numbers import (
    CODE_BITS,
    I64,
    NARROW_BITS,
    WIDE_BITS,
    clamp_shift,
    largest,
    round_shift,
    saturate,
)
from edgedec.reference.integer_profile.values import Scale
from edgedec.sim.interpreter.streams import integers

__all__ = ["WeightMemory", "drained", "matrix_layout"]

U8 = NDArray[np.uint8]

_BIAS_BITS = 27
_FACTOR_SHIFT, _LOGIT_SHIFT = 15, 11


def matrix_layout(of: Instruction, config: AcceleratorConfig) -> Int8Layout | TernaryLayout:
    """Return the layout of the beats of a MATRIX instruction; padding counts as rows and columns."""
    shape = {
        "beat_bytes": config.beat_bytes,
        "tile_words": config.tile_words,
        "rows": of["words"] * ROWS,
        "columns": of["blocks"] * config.beat_bytes,
    }
    if of["int8"]:
        return Int8Layout(**shape)
    return TernaryLayout(**shape, planes=of["planes"], group_size=of["group_blocks"] * config.beat_bytes)


class WeightMemory:
    """Unpacked matrices, which are kept from pass to pass until they take ``keep_bytes`` bytes."""

    def __init__(self, keep_bytes: int) -> None:
        self._free, self._kept = keep_bytes, dict[Any, NDArray[Any]]()

    def weights(self, key: Any, layout: Int8Layout | TernaryLayout, beats: U8, *, tied: bool = False) -> NDArray[Any]:
        """Return a matrix [rows, columns] in the smaller float type in which every sum of its products with codes is exact.

        Args:
            key: identifies the bytes of ``beats``; None if they are unknown, so that the matrix is not kept.
            tied: whether the trits of the first of two planes count three times.
        """
        matrix = self._kept.get(key) if key is not None else None
        if matrix is None:
            whole = _summed(layout, beats, tied)
            bound = largest(CODE_BITS) * int(np.abs(whole).sum(axis=1, dtype=np.int64).max(initial=0))
            matrix = whole.astype(np.float32 if bound < 1 << 24 else np.float64)
            if key is not None and matrix.nbytes <= self._free:
                self._free -= matrix.nbytes
                self._kept[key] = matrix
        return matrix


def _summed(layout: Int8Layout | TernaryLayout, beats: U8, tied: bool) -> NDArray[Any]:
    if isinstance(layout, Int8Layout):
        return int8_image.unpack(layout, beats)
    trits, mantissas = ternary_image.unpack(layout, beats)
    if mantissas is None:
        if tied:
            trits[0] *= 3
        planes: NDArray[np.int32] = trits.sum(axis=0, dtype=np.int32)
        return planes
    spread = np.repeat(mantissas.astype(np.int32), layout.group_size, axis=2)[..., : layout.columns]
    weights: NDArray[np.int32] = (trits * spread).sum(axis=0, dtype=np.int32)
    return weights


def drained(of: Instruction, acc: I64, scale: Scale, rows: U8 | None, *, per_row: bool) -> I64:
    """Scale the sums of a matrix to the output of a linear, or to logits.

    Args:
        of: the MATRIX instruction.
        acc: s32 [n, rows].
        scale: scale of the codes.
        rows: uint8 [rows, 8], the row constants if the matrix has them.
        per_row: True if the accelerator uses the mantissas in the row constants.
    """
    count, second = acc.shape[1], np.arange(acc.shape[1]) % 2 * of["pair"]
    weight = np.array([of["weight0"], of["weight1"]])[second]
    base = np.array([of["base0"], of["base1"]])[second]
    bias = shift = np.zeros(count, np.int64)
    if rows is not None:
        packed = integers(rows, "<u4", 0, 1)[:, 0]
        low = packed & ((1 << _BIAS_BITS) - 1)
        bias = low - ((low >> (_BIAS_BITS - 1)) << _BIAS_BITS)
        shift = packed >> _BIAS_BITS
        if per_row:
            weight = integers(rows, "<u2", 4, 1)[:, 0]
    t = round_shift(acc, of["pre_shift"])
    if of["sink"] == Sink.LOGITS:
        return round_shift(t * weight, _LOGIT_SHIFT + shift)
    factor = round_shift(scale.mantissa[:, None] * weight, _FACTOR_SHIFT)
    out = round_shift(t * factor, clamp_shift(base - scale.exponent[:, None] + shift)) + bias
    return saturate(out, WIDE_BITS if of["wide"] else NARROW_BITS)
