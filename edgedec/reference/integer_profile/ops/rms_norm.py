"""Root mean square normalization, as gain times input, and the root separately.

The root cancels in the int8 codes of the product. It is only needed in the drain of the next linear, so that nothing waits
for it. The norms of the heads of queries and keys are followed by no quantizer, and are divided by their roots. So are the
norms of the outputs of linears, which are added to the residual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.graph.ops import GatedRmsNorm, Hadamard, Linear, QuantizeActivation, RmsNorm
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import (
    I64,
    LONGEST_SHIFT,
    NARROW_BITS,
    WIDE_BITS,
    Mantissas,
    bit_length,
    clamp_shift,
    integer_root,
    mantissas,
    round_shift,
    saturate,
)
from edgedec.reference.integer_profile.site import Site, divides, norms_outputs, unsupported
from edgedec.reference.integer_profile.values import Form, Normed, Value

__all__ = [
    "HeadNormConstants",
    "NormConstants",
    "OutputNormConstants",
    "gain_of_parts",
    "gain_of_rows",
    "normed",
    "normed_heads",
    "normed_rows",
    "prepare",
    "root_mean_square",
    "run",
    "sums_of_squares",
]

_WIDEST = (1 << 14) - 1  # elements; a sum of 2^14 squares of -2^17 would need 49 bits
_COARSE = WIDE_BITS - NARROW_BITS  # shift of 9 bits from s27 to s18
_GAIN_SHIFT = 15
_EPS_BITS = 48
_RECIPROCAL_BITS = 32  # a reciprocal is (2^32 - 1) // root
_MOST_GATED_FRACTION = 16  # fraction bits of the normed heads of a delta rule, which a gate multiplies
_LEAST_WIDE_SHIFT = 15  # least shift of a head that is not widened, whose exponent is at least -15
_LEAST_OUTPUT_SHIFT = 0  # least shift of the output of a linear, without its root's exponent
_LEAST_SHIFT = 6  # least shift of a head without its root's exponent, which is at least -6 unless the head is zero


@dataclass(frozen=True, kw_only=True)
class NormConstants:
    """The constants of a norm.

    Members:
        gain: s16 mantissas [width]; the real gain is values * 2^exponent.
        eps: u48, n * eps in squared units of the input.
    """

    gain: Mantissas
    eps: int


@dataclass(frozen=True, kw_only=True)
class HeadNormConstants:
    """The constants of a norm of parts of a row (heads, or groups of columns), whose output is divided by the root.

    Members:
        gain: s16 mantissas [head_dim]; the real gain, times sqrt(head_dim), is values * 2^exponent.
        eps: u48, head_dim * eps in squared units of the widened input.
        shift: shift of the product with the reciprocal, without the root's exponent; 6 to 47.
        widened: fraction bits that are added to the input: 9 to a narrow one, 0 to a wide one.
    """

    gain: Mantissas
    eps: int
    shift: int
    widened: int = _COARSE


@dataclass(frozen=True, kw_only=True)
class OutputNormConstants:
    """The constants of a norm of a linear's output, which is divided by its root and has the residual's unit.

    Members:
        gain: s16 mantissas [width]; the real gain, times sqrt(width), is values * 2^exponent.
        eps: u48, width * eps in squared units of the input.
        shift: shift of the product with the reciprocal, without the root's exponent; 0 to 47.
    """

    gain: Mantissas
    eps: int
    shift: int


def prepare(op: RmsNorm, site: Site) -> NormConstants | HeadNormConstants | OutputNormConstants:
    """Compute the constants.

    Raises:
        UnsupportedError: the row is too wide, eps is too large for the unit, or a reader is not a quantizer.
    """
    unit, width = site.form(op.inputs[0]).unit, site.width(op.inputs[0])
    if norms_outputs(op, site.readers(op.outputs[0])):
        gain, shift = _gain_of_outputs(op, site, width)
        return OutputNormConstants(gain=gain, eps=_eps(op, width, unit), shift=shift)
    if divides(op, site.readers(op.outputs[0])):
        wide = site.form(op.inputs[0]).width == WIDE_BITS
        widened = 0 if wide else _COARSE
        gain, shift = gain_of_parts(op, site, width // op.heads, wide=wide, offset=op.offset)
        eps = _eps(op, width // op.heads, unit / (1 << widened))
        return HeadNormConstants(gain=gain, eps=eps, shift=shift, widened=widened)
    gain = gain_of_rows(op, site, offset=op.offset)
    return NormConstants(gain=gain, eps=_eps(op, width, unit))


def gain_of_rows(op: RmsNorm | GatedRmsNorm, site: Site, *, offset: float = 0.0) -> Mantissas:
    """Return the gains s16 [width] of a norm of whole rows, and set the form of its output.

    Args:
        offset: is added to the weights.

    Raises:
        UnsupportedError: the rows are too wide, or a reader is not a quantizer.
    """
    width = site.width(op.inputs[0])
    if width > _WIDEST:
        raise unsupported(op, f"its rows are {width} wide; at most {_WIDEST}")
    # A linear that reads the norm directly is kept as float, and raises its own error.
    quantized = (QuantizeActivation, Linear, Hadamard)
    others = {reader.kind for reader in site.readers(op.outputs[0]) if not isinstance(reader, quantized)}
    if others:
        raise unsupported(op, f"{', '.join(sorted(others))} reads it; only a quantizer of a linear's input can")
    gain = mantissas(site.weights(op.weight).dense() + offset, bits=15)
    # Unit of the output without the factor m / root, which the following quantizer applies.
    site.set_form(op, Form(unit=2.0 ** (gain.exponent + _GAIN_SHIFT) * width**0.5, width=WIDE_BITS))
    return gain


def gain_of_parts(
    op: RmsNorm | GatedRmsNorm, site: Site, width: int, *, wide: bool, offset: float = 0.0
) -> tuple[Mantissas, int]:
    """Return the gains s16 of a norm of each ``width`` columns and its ``shift``, and set the form of its output.

    Args:
        wide: True if the input is s27, and not s18.
        offset: is added to the weights.

    Raises:
        UnsupportedError: the parts are too wide, or the gains too small.
    """
    if width > _WIDEST:
        raise unsupported(op, f"its heads are {width} wide; at most {_WIDEST}")
    gain = mantissas((site.weights(op.weight).dense() + offset) * width**0.5, bits=15)
    whole = _RECIPROCAL_BITS - _GAIN_SHIFT - gain.exponent  # shift to an output without fraction bits
    least, most = (_LEAST_WIDE_SHIFT, _MOST_GATED_FRACTION) if wide else (_LEAST_SHIFT, whole)
    form = site.narrow(op.outputs[0], min(whole - least, most))
    shift = whole - form.fraction
    if shift > LONGEST_SHIFT:
        raise unsupported(op, f"its gains are as small as 2^{gain.exponent + _GAIN_SHIFT}; use the float targets")
    site.set_form(op, form)
    return gain, shift


def _gain_of_outputs(op: RmsNorm, site: Site, width: int) -> tuple[Mantissas, int]:
    """Return the gains s16 [width] of a norm of a linear's output and its ``shift``; its output has the residual's unit."""
    if width > _WIDEST:
        raise unsupported(op, f"its rows are {width} wide; at most {_WIDEST}")
    gain = mantissas((site.weights(op.weight).dense() + op.offset) * width**0.5, bits=15)
    shift = _RECIPROCAL_BITS - _GAIN_SHIFT - gain.exponent - site.residual.fraction
    if not _LEAST_OUTPUT_SHIFT <= shift <= LONGEST_SHIFT:
        raise unsupported(op, f"its gains are near 2^{gain.exponent + _GAIN_SHIFT}; use the float targets")
    site.set_form(op, site.residual)
    return gain, shift


def _eps(op: RmsNorm, width: int, unit: float) -> int:
    """Return ``width`` * eps in squared units."""
    eps = int(np.floor(width * op.eps / unit**2 + 0.5))
    if eps >> _EPS_BITS:
        raise unsupported(op, f"eps {op.eps:g} is {eps} in squared units of its input; at most 2^{_EPS_BITS} - 1")
    return eps


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


def normed_heads(x: I64, gains: I64, eps: I64 | int, shift: int, widened: int = _COARSE) -> I64:
    """Return the normed heads s18 [n, heads * head_dim] of x [n, heads * head_dim], with gains s16 [head_dim].

    x is s18, or s27 with ``widened`` 0.
    """
    heads = x.reshape(-1, len(gains)) << widened
    y = round_shift(heads * gains, _GAIN_SHIFT)
    small, big = sums_of_squares(heads)
    root, exponent = root_mean_square(small + eps, big)
    reciprocal = ((1 << _RECIPROCAL_BITS) - 1) // root  # u17
    out = round_shift(y * reciprocal[:, None], clamp_shift(shift + exponent)[:, None])
    return saturate(out, NARROW_BITS).reshape(x.shape)


def normed_rows(x: I64, gains: I64, eps: I64 | int, shift: int) -> I64:
    """Return rows x s27 [n, width], normed with gains s16 [width] and divided by their roots: s27 [n, width]."""
    small, big = sums_of_squares(x)
    root, exponent = root_mean_square(small + eps, big)
    reciprocal = ((1 << _RECIPROCAL_BITS) - 1) // root  # u17
    y = round_shift(x * gains, _GAIN_SHIFT)
    return saturate(round_shift(y * reciprocal[:, None], clamp_shift(shift + exponent)[:, None]), WIDE_BITS)


def run(
    op: RmsNorm,
    constants: NormConstants | HeadNormConstants | OutputNormConstants,
    inputs: Sequence[Value],
    context: IntegerPassContext,
) -> tuple[Value, ...]:
    (x,) = inputs
    assert isinstance(x, np.ndarray)
    name = op.outputs[0]
    if isinstance(constants, HeadNormConstants):
        divided = normed_heads(x, constants.gain.values, constants.eps, constants.shift, constants.widened)
        return (context.signed(name, divided, NARROW_BITS),)
    if isinstance(constants, OutputNormConstants):
        divided = normed_rows(x, constants.gain.values, constants.eps, constants.shift)
        return (context.signed(name, divided, WIDE_BITS),)
    return (normed(name, x, constants.gain.values, constants.eps, context),)


def normed(name: str, x: I64, gains: I64, eps: I64 | int, context: IntegerPassContext) -> Normed:
    """Return the norm of rows x s27 [n, width], with gains s16 [width] and eps u48, and trace it with its name."""
    y = context.signed(name, round_shift(x * gains, _GAIN_SHIFT), WIDE_BITS)
    small, big = sums_of_squares(x)
    context.unsigned(f"{name}.small", small, _EPS_BITS)
    context.unsigned(f"{name}.big", big, _EPS_BITS)
    root, exponent = root_mean_square(small + eps, big)
    context.unsigned(f"{name}.root", root, 16)
    context.signed(f"{name}.exponent", exponent, 8)
    return Normed(y=y, root=root, exponent=exponent)
