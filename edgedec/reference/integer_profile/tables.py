"""The tables of the integer profile. The ROMs of the hardware and the host's rotary rows come from these functions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgedec.reference.integer_profile.numbers import I64, round_shift

__all__ = [
    "CAP_FRACTION_BITS",
    "CAP_LAST",
    "CAP_VALUE_BITS",
    "EXP2_FRACTION_BITS",
    "EXP2_LAST",
    "GATE_FRACTION_BITS",
    "GATE_LAST",
    "LONGEST_POWER",
    "OCTAVE_FRACTION_BITS",
    "POWER_FRACTION_BITS",
    "ROTARY_FRACTION_BITS",
    "STEP_FRACTION_BITS",
    "cap_table",
    "capped",
    "exp2_negative",
    "exp2_table",
    "gate_positive",
    "gate_table",
    "octave_power",
    "octave_table",
    "power_of_two",
    "rotary",
    "softplus",
]

EXP2_FRACTION_BITS = 8
EXP2_LAST = 18 * 256 - 1  # integer part 17, for which any 16-bit entry rounds to zero
# Fraction bits of a gate's argument, of which 8 interpolate; the table of SiLU ends at 16, that of GELU at 8.
GATE_FRACTION_BITS: Mapping[str, int] = {"silu": 12, "gelu_tanh": 13}
GATE_LAST = (1 << 16) - 1  # the largest argument
CAP_FRACTION_BITS = 16  # fraction bits of the argument of a soft-cap's tanh, of which 10 interpolate
CAP_LAST = (1 << 18) - 1  # the largest argument, just below 4
CAP_VALUE_BITS = 17  # fraction bits of a tanh
ROTARY_FRACTION_BITS = 14
OCTAVE_FRACTION_BITS = 12  # fraction bits of a logit in octaves, of which 4 interpolate
POWER_FRACTION_BITS = 17  # fraction bits of the factor of a state
LONGEST_POWER = 31 << 16  # the largest argument of ``power_of_two``, of which nothing is left
STEP_FRACTION_BITS = 16  # fraction bits of softplus and of its argument
_TABLE_FRACTION_BITS = 24  # fraction bits of the entries of tables that are interpolated for recurrent states


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
def octave_table() -> tuple[I64, I64]:
    """Return values u16 [256], floor(2^15 * 2^(i / 256) + 0.5), and the steps u8 [256] to the next value, up to 2^16."""
    value = _half_up(2.0**15 * np.exp2(np.arange(257) / 256))
    step = np.diff(value)
    value.flags.writeable = step.flags.writeable = False
    return value[:-1], step


def octave_power(fraction: I64) -> I64:
    """Return 2^15 * 2^(fraction / 4096), u16, for a fraction u12: interpolated, with an error of at most 1."""
    value, step = octave_table()
    at = fraction >> 4
    power: I64 = value[at] + round_shift(step[at] * (fraction & 15), 4)
    return power


@cache
def gate_table(activation: str) -> tuple[I64, I64]:
    """Return values u16 [256] of s(x) in units of 2^-16, and the steps u11 [256] to the next value.

    The activation is x * s(x). s is the sigmoid of x for "silu", and that of 2 * sqrt(2 / pi) * (x + 0.044715 * x^3) for
    "gelu_tanh". value[i] = min(floor(65536 * s(i / 16) + 0.5), 65535) for i in 0..256, with i / 32 for "gelu_tanh";
    step[i] = value[i + 1] - value[i].
    """
    x = np.arange(257) / (1 << GATE_FRACTION_BITS[activation] - 8)
    if activation == "gelu_tanh":
        x = 2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    value = np.minimum(_half_up(65536 / (1 + np.exp(-x))), 65535)
    step = np.diff(value)
    value.flags.writeable = step.flags.writeable = False
    return value[:-1], step


def gate_positive(x: I64, activation: str) -> I64:
    """Return s of x, u16 with the activation's fraction bits, as u16 with 16: interpolated, with an error of at most 4."""
    value, step = gate_table(activation)
    result: I64 = value[x >> 8] + round_shift(step[x >> 8] * (x & 255), 8)
    return result


@cache
def cap_table() -> tuple[I64, I64]:
    """Return values u17 [256], floor(2^17 * tanh(i / 64) + 0.5), and the steps u12 [256] to the next value."""
    value = _half_up(2.0**CAP_VALUE_BITS * np.tanh(np.arange(257) / 64))
    step = np.diff(value)
    value.flags.writeable = step.flags.writeable = False
    return value[:-1], step


def capped(x: I64) -> I64:
    """Return tanh of x, u18 with 16 fraction bits, as u17 with 17: interpolated, with an error of at most 4.

    It does not decrease. Its last value, 0.99933, stands for all larger arguments.
    """
    value, step = cap_table()
    result: I64 = value[x >> 10] + round_shift(step[x >> 10] * (x & 1023), 10)
    return result


def rotary(
    positions: NDArray[np.int32],
    inverse_frequencies: tuple[float, ...],
    magnitude: float = 1.0,
    *,
    pairs: int | None = None,
) -> tuple[I64, I64]:
    """Return cos and sin, s16 [n, pairs]: floor(2^14 * magnitude * cos(position * frequency) + 0.5), and likewise sin.

    Args:
        positions: int32 [n].
        magnitude: factor of the rotated columns, below 2.
        pairs: number of pairs; those without a frequency do not change. By default there are none.
    """
    angles = np.outer(positions.astype(np.float64), np.array(inverse_frequencies))
    one = magnitude * 2**ROTARY_FRACTION_BITS
    kept = 0 if pairs is None else pairs - len(inverse_frequencies)
    cos = np.pad(_half_up(one * np.cos(angles)), ((0, 0), (0, kept)), constant_values=1 << ROTARY_FRACTION_BITS)
    return cos, np.pad(_half_up(one * np.sin(angles)), ((0, 0), (0, kept)))


@cache
def _softplus_table() -> I64:
    """Return u24 [257]: floor(2^24 * log(1 + exp(-i / 16)) + 0.5)."""
    return _half_up(2.0**_TABLE_FRACTION_BITS * np.log1p(np.exp(-np.arange(257) / 16)))


def softplus(x: I64, fraction: int = STEP_FRACTION_BITS) -> I64:
    """Return log(1 + exp(x)) with 16 to 24 fraction bits: the larger of x, which has 16, and 0, and a table of |x|."""
    table, argument = _softplus_table(), np.minimum(np.abs(x), (1 << 20) - 1)
    at, part = argument >> 12, argument & 4095
    log = table[at] - round_shift((table[at] - table[at + 1]) * part, 12)
    positive = np.maximum(x, 0) << (fraction - STEP_FRACTION_BITS)
    return positive + round_shift(log, _TABLE_FRACTION_BITS - fraction)


@cache
def _power_table() -> I64:
    """Return u25 [257]: floor(2^24 * 2^(-i / 256) + 0.5)."""
    return _half_up(2.0**_TABLE_FRACTION_BITS * np.exp2(-np.arange(257) / 256))


def power_of_two(u: I64) -> I64:
    """Return 2^(-u / 2^16), u18 with 17 fraction bits, for u >= 0: an interpolated table of the fraction, shifted."""
    table, at, part = _power_table(), u >> 8 & 255, u & 255
    power = table[at] - round_shift((table[at] - table[at + 1]) * part, 8)
    return round_shift(power, np.minimum((u >> 16) + _TABLE_FRACTION_BITS - POWER_FRACTION_BITS, 62))
