"""Compute the exponentials of docs/integer-profile.md, one by one in Python integers."""

from __future__ import annotations

import math

__all__ = ["chance", "rs"]


def rs(x: int, shift: int) -> int:
    """Shift right, and round half up."""
    return (x + (1 << shift >> 1)) >> shift


def chance(distance: int, factor: int, shift: int) -> int:
    """Return 2^(-distance * factor * 2^-shift / 256) in units of 1/65535."""
    u = min(rs(distance * factor, shift), 4607)
    return rs(math.floor(65535 * 2 ** (-(u % 256) / 256) + 0.5), u >> 8)
