"""Code rows of keys and values in few bits, in integers alone, as an accelerator could.

A code times its scale is an integer in the unit of what is coded. A scale is a mantissa and an exponent, or a power of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.shapes import BITNET_073B
from edgedec.errors import UsageError
from edgedec.reference.integer_profile import numbers
from edgedec.reference.integer_profile.numbers import CODE_BITS, I64, Mantissas, largest
from edgedec.reference.integer_profile.ops.hadamard import block_sums

__all__ = ["FORMS", "PROFILE", "Coding", "RowForm", "bytes_of_position", "coded"]

F64 = NDArray[np.float64]

_FRACTION = 8  # fraction bits of a key or value in units of the int8 code
_ZERO_BITS = 8
# Bits of a scale, and of its mantissa, whose first bit is always 1 and takes none; the others are an exponent's.
_SCALES = {"byte": (8, 5), "word": (16, 12), "power": (4, 1), "static": (0, 0)}


@dataclass(frozen=True, kw_only=True)
class Coding:
    """The form of the rows of keys, or of those of values.

    Parameters:
        bits: bits of a code.
        group: neighbouring elements of a head that share a scale; None is the whole head.
        columns: elements are first divided by the profile's static scale of their head and column.
        turned: blocks of a head are first transformed by Sylvester's matrix; their size is the largest power of two that
            divides the head.
        zero: codes are unsigned, and each scale has a zero point of 8 bits, a code too.
        scale: a mantissa and an exponent in a byte or in two, a power of two, or static, the same for all.
    """

    bits: int
    group: int | None = None
    columns: bool = False
    turned: bool = False
    zero: bool = False
    scale: Literal["byte", "word", "power", "static"] = "byte"

    def head_bits(self, dim: int) -> int:
        """Return the bits of a head of one position, with its scales."""
        groups = -(-dim // (self.group or dim))
        return dim * self.bits + groups * (_SCALES[self.scale][0] + self.zero * _ZERO_BITS)


@dataclass(frozen=True, kw_only=True)
class RowForm:
    """The codings of keys and of values; None is the profile's own int8 codes."""

    keys: Coding | None
    values: Coding | None


def _both(**parts: Any) -> RowForm:
    return RowForm(keys=Coding(**parts), values=Coding(**parts))


PROFILE = RowForm(keys=None, values=None)
FORMS: Mapping[str, RowForm] = {
    "8, a scale for each row and head": _both(bits=8),
    "6": _both(bits=6),
    "5": _both(bits=5),
    "4": _both(bits=4),
    "4, scales that are powers of two": _both(bits=4, scale="power"),
    "4, scales of two bytes": _both(bits=4, scale="word"),
    "4, groups of 32": _both(bits=4, group=32),
    "4, groups of 32, scales of two bytes": _both(bits=4, group=32, scale="word"),
    "4, groups of 16": _both(bits=4, group=16),
    "4, keys divided": RowForm(keys=Coding(bits=4, columns=True), values=Coding(bits=4)),
    "4, keys divided, scales of two bytes": RowForm(
        keys=Coding(bits=4, columns=True, scale="word"), values=Coding(bits=4, scale="word")
    ),
    "4, keys and values divided": _both(bits=4, columns=True),
    "4, divided, without other scales": _both(bits=4, columns=True, scale="static"),
    "4, turned": _both(bits=4, turned=True),
    "4, turned, groups of 32": _both(bits=4, turned=True, group=32),
    "4, zero points": _both(bits=4, zero=True),
    "4, zero points, groups of 32": _both(bits=4, zero=True, group=32),
    "4, keys divided, with zero points": RowForm(keys=Coding(bits=4, columns=True, zero=True), values=Coding(bits=4)),
    "keys 5 and divided, values 4": RowForm(keys=Coding(bits=5, columns=True), values=Coding(bits=4)),
    "keys 6 and divided, values 4": RowForm(keys=Coding(bits=6, columns=True), values=Coding(bits=4)),
    "keys 8, values 4": RowForm(keys=None, values=Coding(bits=4)),
    "keys 4, values 8": RowForm(keys=Coding(bits=4), values=None),
}


def bytes_of_position(form: RowForm, config: Mapping[str, Any] = BITNET_073B) -> int:
    """Return the bytes of the keys and values of one position in all layers, with their scales."""
    heads = int(config["num_key_value_heads"])
    dim = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    bits = sum(dim * CODE_BITS if side is None else side.head_bits(dim) for side in (form.keys, form.values))
    return int(config["num_hidden_layers"]) * heads * bits // 8


def coded(x: I64, factor: Mantissas, coding: Coding) -> F64:
    """Return rows after their coding, in units of the profile's int8 codes, float64 [n, heads, head_dim].

    Args:
        x: the integers that the profile codes, s19 [n, heads, head_dim]; keys without their middle.
        factor: the profile's factors to int8 codes [heads, head_dim].
        coding: their form.

    Raises:
        UsageError: the groups do not divide a head.
    """
    unit = numbers.shifted(factor.values, factor.exponent)  # int8 codes of the integer 1
    reach, dim = np.floor(largest(CODE_BITS) / unit).astype(np.int64), x.shape[-1]
    x = np.clip(x, -reach, reach)
    if coding.columns:
        x = numbers.round_shift((x * factor.values) << _FRACTION, -factor.exponent)
    block = dim & -dim if coding.turned else 1
    group = min(coding.group or dim, dim)
    if dim % group:
        raise UsageError(f"heads of {dim} elements have no whole groups of {group}; choose other --forms")
    parts = block_sums(x, block).reshape(*x.shape[:-1], dim // group, group)
    rows = block_sums(_restored(parts, coding).reshape(x.shape), block) / block
    return rows / (1 << _FRACTION) if coding.columns else rows * unit


def _restored(x: I64, coding: Coding) -> I64:
    """Return each code times its scale, of x [..., group]; the elements of the last axis share a scale."""
    least, most = x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)
    reach = np.maximum(most, -least)
    if coding.zero:
        levels = (1 << coding.bits) - 1
        scale = _scales(np.maximum(-(-(most - least) // levels), -(-reach // largest(_ZERO_BITS))), coding)
        zero = _nearest(-least, scale)
        unsigned: I64 = np.clip(_nearest(x, scale) + zero, 0, levels)
        return (unsigned - zero) * scale
    levels = largest(coding.bits)
    if coding.scale == "static":
        reach = np.full_like(reach, largest(CODE_BITS) << _FRACTION)
    scale = _scales(-(-reach // levels), coding)
    return _nearest(x, scale) * scale


def _scales(least: I64, coding: Coding) -> I64:
    """Return the smallest scales that the coding can store, at least ``least`` and 1."""
    least = np.maximum(least, 1)
    if coding.scale == "static":
        return least
    exponent = np.maximum(numbers.bit_length(least) - _SCALES[coding.scale][1], 0)
    scales: I64 = -(-least >> exponent) << exponent
    return scales


def _nearest(x: I64, scale: I64) -> I64:
    """Return x / scale, rounded half up."""
    return (2 * x + scale) // (2 * scale)
