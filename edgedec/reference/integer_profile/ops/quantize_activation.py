"""Quantization of activations to int8 codes with one scale per row, by the absolute maximum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.graph.ops import QuantizeActivation
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import (
    CODE_BITS,
    I64,
    WIDE_BITS,
    bit_length,
    normalize16,
    round_shift,
    saturate,
)
from edgedec.reference.integer_profile.site import Site
from edgedec.reference.integer_profile.values import Form, Normed, Scale, Value

__all__ = ["codes_of", "normed_scale", "prepare", "run", "shortened"]

_RECIPROCAL_SHIFT = 25
_LARGEST_CODE = 127


def prepare(op: QuantizeActivation, site: Site) -> None:
    """Set the forms. The real unit of a code is mantissa * 2^exponent of its row times the unit of the input / 127."""
    source = site.form(op.inputs[0])
    site.set_form(op, Form(unit=1.0, width=CODE_BITS), 0)
    site.set_form(op, Form(unit=source.unit / _LARGEST_CODE, width=16), 1)


def codes_of(y: I64) -> tuple[I64, I64, I64]:
    """Return the codes s8 of y s27 [n, width], and each row's absolute maximum as (m16, e); (0, 0) for a row of zeros.

    r = (127 * 2^25) // m16: u17; code = (y * r + 2^(e + 8)) >> (e + 9). No clamp is needed:
    |y| <= m implies |code| <= 127.
    """
    m = np.abs(y).max(axis=1, initial=0)
    m16, e = normalize16(np.maximum(m, 1))
    r = (_LARGEST_CODE << _RECIPROCAL_SHIFT) // m16
    codes = round_shift(y * r[:, None], (e + _RECIPROCAL_SHIFT - 16)[:, None])
    return codes, np.where(m > 0, m16, 0), np.where(m > 0, e, 0)


def shortened(y: I64) -> tuple[I64, I64]:
    """Return y [n, width] as s27, and the low bits that each row drops for that: 0 unless y are sums of a transform."""
    dropped = np.maximum(bit_length(np.abs(y).max(axis=1, initial=0)) - (WIDE_BITS - 1), 0)
    return saturate(round_shift(y, dropped[:, None]), WIDE_BITS), dropped


def normed_scale(m16: I64, e: I64, root: I64, exponent: I64) -> Scale:
    """Return absmax / root mean square by one division, (m16 * 2^16) // root in [2^15, 2^17), normalized to 16 bits."""
    a = (m16 << 16) // root
    long = a >> 16
    scale = Scale(mantissa=a >> long, exponent=e - 32 - exponent + long)
    return Scale(mantissa=scale.mantissa, exponent=np.where(m16 > 0, scale.exponent, 0))


def run(
    op: QuantizeActivation, constants: None, inputs: Sequence[Value], context: IntegerPassContext
) -> tuple[Value, ...]:
    (x,) = inputs
    y = x.y if isinstance(x, Normed) else x
    assert isinstance(y, np.ndarray)
    y, dropped = shortened(y)
    context.check.signed(op.inputs[0], y, WIDE_BITS)
    codes, m16, e = codes_of(y)
    e = np.where(m16 > 0, e + dropped, 0)
    if isinstance(x, Normed):
        scale = normed_scale(m16, e, x.root, x.exponent)
    else:
        scale = Scale(mantissa=m16, exponent=np.where(m16 > 0, e - 16, 0))
    context.signed(op.outputs[0], codes, CODE_BITS)
    context.unsigned(f"{op.outputs[1]}.mantissa", scale.mantissa, 16)
    context.signed(f"{op.outputs[1]}.exponent", scale.exponent, 8)
    return codes, scale
