"""What passes between operations, and what preparation knows of it."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.reference.integer_profile.numbers import I64

__all__ = ["Form", "Logits", "Normed", "Scale", "Value"]


@dataclass(frozen=True, kw_only=True)
class Form:
    """The static side of a value. ``unit``: the real number that its integer 1 stands for.

    ``width``: bits of the integers. Of codes, ``unit`` is the constant behind mantissa * 2^exponent of their row's scale.
    """

    unit: float
    width: int
    fraction: int = 0  # unit = 2^-fraction, where that is so by construction


@dataclass(frozen=True, kw_only=True)
class Normed:
    """What a norm gives. ``y`` s27 [n, width]; the root mean square: ``root`` u16 [n], times 2^``exponent`` s8 [n]."""

    y: I64
    root: I64
    exponent: I64


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One per row: ``mantissa`` u16 in [2^15, 2^16), or 0 for a row of zeros; ``exponent`` s8. [n] both."""

    mantissa: I64
    exponent: I64


@dataclass(frozen=True, kw_only=True)
class Logits:
    """``values`` s32 [r, vocab]; a row's real logits are values * mantissa * 2^exponent. [r] both, u16 and s16."""

    values: I64
    mantissa: I64
    exponent: I64


Value = I64 | Normed | Scale | Logits
