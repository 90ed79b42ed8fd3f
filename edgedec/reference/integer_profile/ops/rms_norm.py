"""Root mean square normalization, as gain times input, and the root separately.

The root cancels in the int8 codes of the product. It is only needed in the drain of the next linear, so that nothing waits
for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.ops import Hadamard, Linear, QuantizeActivation, RmsNorm
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import (
    I64,
    NARROW_BITS,
    WIDE_BITS,
    Mantissas,
    bit_length,
    integer_root,
    mantissas,
    round_shift,
)
from edgedec.reference.integer_profile.site import Site, unsupported
from edgedec.reference.integer_profile.values import Form, Normed, Value

__all__ = ["NormConstants", "prepare", "root_mean_square", "run", "sums_of_squares"]

_WIDEST = (1 << 14) - 1  # elements; a sum of 2^14 squares of -2^17 would need 49 bits
_COARSE = WIDE_BITS - NARROW_BITS  # shift of 9 bits from s27 to s18
_GAIN_SHIFT = 15
_EPS_BITS = 48


@dataclass(frozen=True, kw_only=True)
class NormConstants:
    """The constants of a norm.

    Members:
        gain: s16 mantissas [width]; the real gain is values * 2^exponent.
        eps: u48, n * eps in squared units of the input.
    """

    gain: Mantissas
    eps: int


def prepare(op: RmsNorm, site: Site) -> NormConstants:
    """Compute the constants.

    Raises:
        UnsupportedError: the row is too wide, eps is too large for the unit, or a reader is not a quantizer.
    """
    source, width = site.form(op.inputs[0]), site.width(op.inputs[0])
    if width > _WIDEST:
        raise unsupported(op, f"its rows are {width} wide; at most {_WIDEST}")
    # A linear that reads the norm directly is kept as float, and raises its own error.
    quantized = (QuantizeActivation, Linear, Hadamard)
    others = {reader.kind for reader in site.readers(op.outputs[0]) if not isinstance(reader, quantized)}
    if others:
        raise unsupported(op, f"{', '.join(sorted(others))} reads it; only a quantizer of a linear's input can")
    eps = int(np.floor(width * op.eps / source.unit**2 + 0.5))
    if eps >> _EPS_BITS:
        raise unsupported(op, f"eps {op.eps:g} is {eps} in squared units of its input; at most 2^{_EPS_BITS} - 1")
    gain = mantissas(site.weights(op.weight).dense() + op.offset, bits=15)
    # Unit of the output without the factor m / root, which the following quantizer applies.
    unit = 2.0 ** (gain.exponent + _GAIN_SHIFT) * width**0.5
    site.set_form(op, Form(unit=unit, width=WIDE_BITS))
    return NormConstants(gain=gain, eps=eps)


def sums_of_squares(x: I64) -> tuple[I64, I64]:
    """Return two sums u48 [n] of x s27 [n, width]: squares of elements that fit s18, and squares of x >> 9 of the others.

    This takes one 18 x 18 multiplication per element. The relative error near the limit is at most 1/256.
    """
    fits = (x >= -(1 << (NARROW_BITS - 1))) & (x < 1 << (NARROW_BITS - 1))
    operand = np.where(fits, x, x >> _COARSE)
    squares = operand * operand
    return np.where(fits, squares, 0).sum(axis=1), np.where(fits, 0, squares).sum(axis=1)


def root_mean_square(small: I64, big: I64) -> tuple[I64, I64]:
    """Return sqrt(small + big * 2^18) as root u16 in [2^15, 2^16) * 2^exponent, rounded down."""
    v = np.where(big == 0, np.maximum(small, 1), big + (small >> 2 * _COARSE))
    z = (32 - bit_length(v)) & ~1  # even, rounded down
    root = integer_root((v << np.maximum(z, 0)) >> np.maximum(-z, 0))
    return root, np.where(big == 0, 0, _COARSE) - (z >> 1)


def run(
    op: RmsNorm, constants: NormConstants, inputs: Sequence[Value], context: IntegerPassContext
) -> tuple[Value, ...]:
    (x,) = inputs
    assert isinstance(x, np.ndarray)
    name = op.outputs[0]
    y = context.signed(name, round_shift(x * constants.gain.values, _GAIN_SHIFT), WIDE_BITS)
    small, big = sums_of_squares(x)
    context.unsigned(f"{name}.small", small, _EPS_BITS)
    context.unsigned(f"{name}.big", big, _EPS_BITS)
    root, exponent = root_mean_square(small + constants.eps, big)
    context.unsigned(f"{name}.root", root, 16)
    context.signed(f"{name}.exponent", exponent, 8)
    return (Normed(y=y, root=root, exponent=exponent),)
