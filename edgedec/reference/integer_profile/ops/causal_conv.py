"""A short convolution along the path of each row, and silu: exact products, one rounding before silu and one after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.graph.ops import CausalConv
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import (
    I64,
    NARROW_BITS,
    WIDE_BITS,
    Mantissas,
    largest,
    mantissas,
    round_shift,
    saturate,
    to_fixed,
)
from edgedec.reference.integer_profile.ops.gated_activation import gate_factor
from edgedec.reference.integer_profile.site import Site, fraction_bits, unsupported
from edgedec.reference.integer_profile.tables import GATE_FRACTION_BITS
from edgedec.reference.integer_profile.values import Form, Value

__all__ = ["ConvConstants", "prepare", "run"]

_HEADROOM = 2.0
_MOST_FRACTION = 22
_LEAST_SUM_FRACTION = 6  # fraction bits of a sum that the table's argument takes at least


@dataclass(frozen=True, kw_only=True)
class ConvConstants:
    """The constants of a convolution.

    Members:
        weight: s16 mantissas [kernel, channels].
        bias: s27 [channels] in units of the sums.
        sum_shift: shift of a sum of products to s27.
        index_shift: shift of |sum| * 2^6 to the 12 fraction bits of the sigmoid's table.
        out_shift: shift of sum * sigmoid to the output.
    """

    weight: Mantissas
    bias: I64
    sum_shift: int
    index_shift: int
    out_shift: int


def prepare(op: CausalConv, site: Site) -> ConvConstants:
    """Compute the constants.

    Raises:
        UnsupportedError: the input is no linear's output, or its sums reach more than 2^20.
    """
    source = site.form(op.inputs[0])
    if source.width != NARROW_BITS:
        raise unsupported(op, "its input is not the output of a linear")
    real = site.weights(op.weight).dense()[:, 0].T.astype(np.float64)
    bias = site.weights(op.bias).dense() if op.bias else np.zeros(real.shape[1])
    weight = mantissas(real, bits=15)
    # The least unit with which no sum of any input saturates.
    bound = float((np.abs(real).sum(axis=0) * largest(NARROW_BITS) * source.unit + np.abs(bias)).max(initial=0.0))
    fraction = fraction_bits(bound * (1 + 2.0**-14), WIDE_BITS, source.fraction - weight.exponent)
    if fraction < _LEAST_SUM_FRACTION:
        raise unsupported(op, f"its sums can reach {bound:g}; at most 2^20")
    out = fraction_bits(
        _HEADROOM * site.calibration.most(op.outputs[0]), NARROW_BITS, min(_MOST_FRACTION, fraction + 16)
    )
    site.set_form(op, Form(unit=2.0**-out, width=NARROW_BITS, fraction=out))
    return ConvConstants(
        weight=weight,
        bias=to_fixed(bias, 2.0**-fraction, WIDE_BITS),
        sum_shift=source.fraction - weight.exponent - fraction,
        index_shift=fraction + 6 - GATE_FRACTION_BITS["silu"],
        out_shift=fraction + 16 - out,
    )


def run(
    op: CausalConv, constants: ConvConstants, inputs: Sequence[Value], context: IntegerPassContext
) -> tuple[Value, ...]:
    (x,) = inputs
    assert isinstance(x, np.ndarray)
    name, total = op.outputs[0], np.empty_like(x)
    for row in range(len(x)):
        seen = np.concatenate([context.cache.before(op.state, row), x[row : row + 1]])  # [kernel, channels]
        context.cache.advance(op.state, seen[1:])
        total[row] = round_shift((seen * constants.weight.values).sum(axis=0), constants.sum_shift) + constants.bias
    context.signed(f"{name}.sum", total, WIDE_BITS)
    active = round_shift(total * gate_factor(total, constants.index_shift), constants.out_shift)
    return (context.signed(name, saturate(active, NARROW_BITS), NARROW_BITS),)
