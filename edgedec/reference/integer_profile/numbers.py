"""The arithmetic that every operation of the integer profile is made of; docs/integer-profile.md is its one-page form.

All arrays are int64 so that NumPy cannot wrap; the width that hardware gives a value stands with each function and is what
``Check`` proves. s27: signed, 27 bits, two's complement; u16: unsigned, 16 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError

__all__ = [
    "CODE_BITS",
    "I64",
    "LONGEST_SHIFT",
    "NARROW_BITS",
    "WIDE_BITS",
    "Check",
    "Mantissas",
    "bit_length",
    "clamp_shift",
    "integer_root",
    "largest",
    "mantissas",
    "normalize16",
    "round_shift",
    "saturate",
    "to_fixed",
]

I64 = NDArray[np.int64]

WIDE_BITS = 27  # residual and all that a quantizer reads: the wide port of a DSP48E2
NARROW_BITS = 18  # what linears give to rotary, attention and the gate: the narrow port
CODE_BITS = 8  # activations, keys, values
LONGEST_SHIFT = 47  # a product has at most 45 bits: a longer shift gives the same zero


def largest(bits: int) -> int:
    """The bound of a symmetric signed value: 2^(bits - 1) - 1. The one pattern below it is never used."""
    return (1 << (bits - 1)) - 1


def round_shift(x: I64, shift: I64 | int) -> I64:
    """Round half up: (x + 2^(shift - 1)) >> shift, arithmetic; shift 0 changes nothing.

    In hardware the bit that is shifted out last is added to the result.

    Args:
        x: any signed value whose sum with 2^(shift - 1) stays within int64.
        shift: 0..62, broadcasts against x.
    """
    half = np.left_shift(np.int64(1), np.asarray(shift, np.int64)) >> 1
    rounded: I64 = (x + half) >> shift
    return rounded


def saturate(x: I64, bits: int) -> I64:
    """Clamp to the symmetric range of ``bits``."""
    return np.clip(x, -largest(bits), largest(bits))


def bit_length(x: I64) -> I64:
    """Position of the highest one, counted from 1; 0 for 0. x: 0 .. 2^53 - 1, where float64's exponent is exact."""
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)


def normalize16(x: I64) -> tuple[I64, I64]:
    """x >= 1 as (mantissa u16 in [2^15, 2^16), e = bit length): x is mantissa * 2^(e - 16), low bits dropped."""
    e = bit_length(x)
    return (x << np.maximum(16 - e, 0)) >> np.maximum(e - 16, 0), e


def integer_root(x: I64) -> I64:
    """Largest r with r * r <= x. x: u32; the root u16. float64's root is correctly rounded, so its floor is exact here."""
    return np.sqrt(x.astype(np.float64)).astype(np.int64)


def clamp_shift(shift: I64) -> I64:
    """Shifts that hardware has: 0..47."""
    return np.clip(shift, 0, LONGEST_SHIFT)


def to_fixed(x: NDArray[Any] | float, unit: float, bits: int) -> I64:
    """Real numbers in units of ``unit``: floor(x / unit + 0.5) in float64, saturated. For preparation and embeddings."""
    scaled = np.floor(np.asarray(x, np.float64) / unit + 0.5)
    limit = float(largest(bits))
    return np.clip(scaled, -limit, limit).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Mantissas:
    """Real factors as ``values`` * 2^``exponent``: integers of stated width, one exponent for all."""

    values: I64
    exponent: int


def mantissas(x: NDArray[Any] | float, bits: int = 16, *, least_exponent: int = -(1 << 20)) -> Mantissas:
    """Real factors as integers with |value| < 2^bits, the largest at least 2^(bits - 1), rounded half up.

    ``least_exponent`` keeps the exponent from falling below it; the mantissas then have fewer bits. All zero: exponent 0.
    """
    real = np.atleast_1d(np.asarray(x, np.float64))
    most = float(np.abs(real).max(initial=0.0))
    if most == 0.0:
        return Mantissas(values=np.zeros(real.shape, np.int64), exponent=0)
    exponent = max(math.frexp(most)[1] - bits, least_exponent)
    if math.floor(math.ldexp(most, -exponent) + 0.5) >= 1 << bits:  # 65535.7 would become 65536
        exponent += 1
    return Mantissas(values=np.floor(np.ldexp(real, -exponent) + 0.5).astype(np.int64), exponent=exponent)


@dataclass(frozen=True, kw_only=True)
class Check:
    """Proves, value by value, that none leaves its documented width; made for tests, costs little."""

    enabled: bool = False

    def signed(self, name: str, x: I64, bits: int) -> I64:
        """x within the symmetric range of ``bits``.

        Raises:
            EdgedecError: it is not; names the value. A bug of the definition, never of a model.
        """
        if self.enabled and x.size and max(-int(x.min()), int(x.max())) > largest(bits):
            raise EdgedecError(
                f"{name} leaves s{bits}: {int(x.min())}..{int(x.max())}; report this as a bug of edgedec"
            )
        return x

    def unsigned(self, name: str, x: I64, bits: int) -> I64:
        """x within 0 .. 2^bits - 1; raises as ``signed``."""
        if self.enabled and x.size and (int(x.min()) < 0 or int(x.max()) >> bits):
            raise EdgedecError(
                f"{name} leaves u{bits}: {int(x.min())}..{int(x.max())}; report this as a bug of edgedec"
            )
        return x
