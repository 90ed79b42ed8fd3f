"""The values between operations, and their static properties."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.reference.integer_profile.numbers import I64

__all__ = ["Form", "Logits", "Normed", "Scale", "Value"]


@dataclass(frozen=True, kw_only=True)
class Form:
    """The static properties of a value.

    Members:
        unit: real number of the integer 1; for codes, the constant factor of mantissa * 2^exponent of their row's scale.
        width: bits of the integers.
        fraction: number of fraction bits, if unit = 2^-fraction by construction.
    """

    unit: float
    width: int
    fraction: int = 0


@dataclass(frozen=True, kw_only=True)
class Normed:
    """The output of a norm: ``y`` s27 [n, width], and the root mean square, ``root`` u16 [n] * 2^``exponent`` s8 [n]."""

    y: I64
    root: I64
    exponent: I64


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The scale of each row: ``mantissa`` u16 [n] in [2^15, 2^16), or 0 for a row of zeros, and ``exponent`` s8 [n]."""

    mantissa: I64
    exponent: I64


@dataclass(frozen=True, kw_only=True)
class Logits:
    """Logits of rows: ``values`` s32 [r, vocab]; the real ones are y = values * mantissa u16 [r] * 2^exponent s16 [r].

    With ``cap``, which the host applies to the real numbers, they are cap * tanh(y / cap).
    """

    values: I64
    mantissa: I64
    exponent: I64
    cap: float | None = None


Value = I64 | Normed | Scale | Logits
