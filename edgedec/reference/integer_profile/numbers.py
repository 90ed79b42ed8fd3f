"""The arithmetic of the integer profile. docs/integer-profile.md describes it on one page.

All arrays are int64, so that NumPy cannot wrap. Each function documents the width of its values in hardware, which
``WidthCheck`` checks. s27 means signed, 27 bits, two's complement; u16 means unsigned, 16 bits.
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
    "Mantissas",
    "WidthCheck",
    "bit_length",
    "clamp_shift",
    "integer_root",
    "largest",
    "mantissas",
    "normalize16",
    "round_shift",
    "saturate",
    "shifted",
    "to_fixed",
]

I64 = NDArray[np.int64]

WIDE_BITS = 27  # residual and inputs of quantizers; width of the wide port of a DSP48E2
NARROW_BITS = 18  # outputs of linears for rotary, attention and the gate; width of the narrow port
CODE_BITS = 8  # activations, keys, values
LONGEST_SHIFT = 47  # bits; a product has at most 45 bits, so that a longer shift also gives zero


def largest(bits: int) -> int:
    """Return the largest symmetric signed value, 2^(bits - 1) - 1. The value -2^(bits - 1) is never used."""
    return (1 << (bits - 1)) - 1


def round_shift(x: I64, shift: I64 | int) -> I64:
    """Round half up: (x + 2^(shift - 1)) >> shift, arithmetic; shift 0 changes nothing.

    Hardware adds the bit that is shifted out last to the result.

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
    """Return the position of the highest one, counted from 1; 0 for 0. x is in 0 .. 2^53 - 1, where float64 is exact."""
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)


def normalize16(x: I64) -> tuple[I64, I64]:
    """Return x >= 1 as (mantissa u16 in [2^15, 2^16), bit length e): x is mantissa * 2^(e - 16), without low bits."""
    e = bit_length(x)
    return (x << np.maximum(16 - e, 0)) >> np.maximum(e - 16, 0), e


def integer_root(x: I64) -> I64:
    """Return the largest r u16 with r * r <= x for x u32. The correctly rounded float64 root has the exact floor."""
    return np.sqrt(x.astype(np.float64)).astype(np.int64)


def clamp_shift(shift: I64) -> I64:
    """Limit shifts to 0..47, the range of the hardware."""
    return np.clip(shift, 0, LONGEST_SHIFT)


def to_fixed(x: NDArray[Any] | float, unit: float, bits: int) -> I64:
    """Return real numbers in multiples of ``unit``, floor(x / unit + 0.5), saturated to ``bits``.

    Only preparation and embeddings use this.
    """
    scaled = np.floor(np.asarray(x, np.float64) / unit + 0.5)
    limit = float(largest(bits))
    return np.clip(scaled, -limit, limit).astype(np.int64)


def shifted(values: NDArray[Any], exponent: NDArray[Any] | int) -> NDArray[np.float64]:
    """Return ``values`` * 2^``exponent`` as float64, both of shapes that broadcast.

    NumPy takes exponents of the C compiler's int alone, and would refuse int64 on a 32-bit processor.

    Example: ``shifted(np.array([3]), np.array([-1]))`` is ``[1.5]``.
    """
    result: NDArray[np.float64] = np.ldexp(values.astype(np.float64), np.asarray(exponent, np.intc))
    return result


@dataclass(frozen=True, kw_only=True)
class Mantissas:
    """Real factors as ``values`` * 2^``exponent``: integers of limited width with one exponent."""

    values: I64
    exponent: int


def mantissas(x: NDArray[Any] | float, bits: int = 16, *, least_exponent: int = -(1 << 20)) -> Mantissas:
    """Return real factors as integers with |value| < 2^bits, the largest at least 2^(bits - 1), rounded half up.

    The exponent is at least ``least_exponent``, and mantissas have fewer bits at this limit. It is 0 if all factors are 0.
    """
    real = np.atleast_1d(np.asarray(x, np.float64))
    most = float(np.abs(real).max(initial=0.0))
    if most == 0.0:
        return Mantissas(values=np.zeros(real.shape, np.int64), exponent=0)
    exponent = max(math.frexp(most)[1] - bits, least_exponent)
    if math.floor(math.ldexp(most, -exponent) + 0.5) >= 1 << bits:  # 65535.7 would become 65536
        exponent += 1
    return Mantissas(values=np.floor(shifted(real, -exponent) + 0.5).astype(np.int64), exponent=exponent)


@dataclass(frozen=True, kw_only=True)
class WidthCheck:
    """Check that every value fits its documented width. This is for tests and takes little time."""

    enabled: bool = False

    def signed(self, name: str, x: I64, bits: int) -> I64:
        """Check that x is in the symmetric range of ``bits``, and return it.

        Raises:
            EdgedecError: it is not, which is a bug of the definition and never of a model; the message names the value.
        """
        if self.enabled and x.size and max(-int(x.min()), int(x.max())) > largest(bits):
            raise EdgedecError(
                f"{name} does not fit s{bits}: {int(x.min())}..{int(x.max())}; report this as a bug of edgedec"
            )
        return x

    def unsigned(self, name: str, x: I64, bits: int) -> I64:
        """Check that x is in 0 .. 2^bits - 1, and return it.

        Raises:
            EdgedecError: it is not; the message names the value.
        """
        if self.enabled and x.size and (int(x.min()) < 0 or int(x.max()) >> bits):
            raise EdgedecError(
                f"{name} does not fit u{bits}: {int(x.min())}..{int(x.max())}; report this as a bug of edgedec"
            )
        return x
