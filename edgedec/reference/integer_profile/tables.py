"""The tables of the integer profile. The ROMs of the hardware and the host's rotary rows come from these functions."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgedec.reference.integer_profile.numbers import I64, round_shift

__all__ = [
    "EXP2_FRACTION_BITS",
    "EXP2_LAST",
    "ROTARY_FRACTION_BITS",
    "SIGMOID_FRACTION_BITS",
    "SIGMOID_LAST",
    "exp2_negative",
    "exp2_table",
    "rotary",
    "sigmoid_positive",
    "sigmoid_table",
]

EXP2_FRACTION_BITS = 8
EXP2_LAST = 18 * 256 - 1  # integer part 17, for which any 16-bit entry rounds to zero
SIGMOID_FRACTION_BITS = 12  # fraction bits of the argument: 4 select the entry, 8 interpolate
SIGMOID_LAST = (1 << 16) - 1  # argument 15.9998
ROTARY_FRACTION_BITS = 14


def _half_up(x: NDArray[np.float64]) -> I64:
    return np.floor(x + 0.5).astype(np.int64)


@cache
def exp2_table() -> I64:
    """Return u16 [256]: floor(65535 * 2^(-i / 256) + 0.5), from 65535 down to 32856."""
    table = _half_up(65535 * np.exp2(-np.arange(256) / 256))
    table.flags.writeable = False
    return table


def exp2_negative(u: I64) -> I64:
    """Return 65535 * 2^(-u / 256), u16, for u in 0..4607: the entry of its low 8 bits, shifted by its high 5 bits."""
    return round_shift(exp2_table()[u & 255], u >> EXP2_FRACTION_BITS)


@cache
def sigmoid_table() -> tuple[I64, I64]:
    """Return values u16 [256] of 1 / (1 + exp(-i / 16)) in units of 2^-16, and the steps u11 [256] to the next value.

    value[i] = min(floor(65536 / (1 + exp(-i / 16)) + 0.5), 65535) for i in 0..256; step[i] = value[i + 1] - value[i].
    """
    value = np.minimum(_half_up(65536 / (1 + np.exp(-np.arange(257) / 16))), 65535)
    step = np.diff(value)
    value.flags.writeable = step.flags.writeable = False
    return value[:-1], step


def sigmoid_positive(x: I64) -> I64:
    """Return the sigmoid of x, u16 with 12 fraction bits, as u16 with 16: interpolated, with an error of at most 4."""
    value, step = sigmoid_table()
    result: I64 = value[x >> 8] + round_shift(step[x >> 8] * (x & 255), 8)
    return result


def rotary(positions: NDArray[np.int32], inverse_frequencies: tuple[float, ...]) -> tuple[I64, I64]:
    """Return cos and sin, s16 [n, head_dim / 2] with 14 fraction bits: floor(2^14 * cos(position * frequency) + 0.5)."""
    angles = np.outer(positions.astype(np.float64), np.array(inverse_frequencies))
    return _half_up(2**ROTARY_FRACTION_BITS * np.cos(angles)), _half_up(2**ROTARY_FRACTION_BITS * np.sin(angles))
