"""Root mean square normalization of gated columns: the product with silu of the gate, and then a norm.

The products have a wide range, so each row or group of columns is shifted to the 27 bits that its largest product needs. The
shift has no other effect: the root is that of the shifted products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.graph.ops import GatedRmsNorm
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import (
    I64,
    NARROW_BITS,
    WIDE_BITS,
    Mantissas,
    bit_length,
    round_shift,
    saturate,
)
from edgedec.reference.integer_profile.ops.gated_activation import SILU_SHIFT, gate_factor
from edgedec.reference.integer_profile.ops.rms_norm import gain_of_parts, gain_of_rows, normed, normed_heads
from edgedec.reference.integer_profile.site import Site, unsupported
from edgedec.reference.integer_profile.tables import GATE_FRACTION_BITS
from edgedec.reference.integer_profile.values import Value

__all__ = ["GatedNormConstants", "prepare", "run"]

_EPS_MANTISSA_BITS, _EPS_BITS = 16, 48


@dataclass(frozen=True, kw_only=True)
class GatedNormConstants:
    """The constants of a gated norm.

    Members:
        index_shift: shift of |gate| * 2^6 to the 12 fraction bits of the sigmoid's table.
        gain: s16 mantissas [width], as in ``NormConstants``, or with several groups as in ``HeadNormConstants``.
        eps, eps_exponent: columns of a group times eps, in squared units of a product: eps * 2^eps_exponent, eps u16.
        least_shift: least shift of the products, with which eps fits 48 bits.
        shift: shift of ``HeadNormConstants``; None: there is one group, whose root the quantizer takes over.
    """

    index_shift: int
    gain: Mantissas
    eps: int
    eps_exponent: int
    least_shift: int
    shift: int | None


def prepare(op: GatedRmsNorm, site: Site) -> GatedNormConstants:
    """Compute the constants.

    Raises:
        UnsupportedError: the gate is not the output of a linear, x is not that of a scan, or the norm is too wide.
    """
    gate, x = (site.form(name) for name in op.inputs)
    if (gate.width, x.width) != (NARROW_BITS, WIDE_BITS):
        raise unsupported(op, "its gate is not the output of a linear, or what it gates is not that of a scan")
    width, shift = site.width(op.inputs[0]) // op.groups, None
    if op.groups == 1:
        gain = gain_of_rows(op, site)
    else:
        gain, shift = gain_of_parts(op, site, width, wide=True)
    fraction = gate.fraction + 16 - SILU_SHIFT + x.fraction  # fraction bits of a product
    mantissa, exponent = math.frexp(width * op.eps)
    exponent += 2 * fraction - _EPS_MANTISSA_BITS
    return GatedNormConstants(
        index_shift=gate.fraction + 6 - GATE_FRACTION_BITS["silu"],
        gain=gain,
        eps=min(math.floor(mantissa * 2**_EPS_MANTISSA_BITS + 0.5), 2**_EPS_MANTISSA_BITS - 1),
        eps_exponent=exponent,
        least_shift=max(0, -((_EPS_BITS - _EPS_MANTISSA_BITS - exponent) // 2)),
        shift=shift,
    )


def _shifted(products: I64, constants: GatedNormConstants) -> tuple[I64, I64]:
    """Return products [n, columns of a group] as s27, and eps u48 [n] in their squared units."""
    largest = np.abs(products).max(axis=1)
    shift = np.maximum(bit_length(largest) - (WIDE_BITS - 1), constants.least_shift)
    exponent = constants.eps_exponent - 2 * shift
    eps = round_shift(constants.eps << np.maximum(exponent, 0), np.minimum(np.maximum(-exponent, 0), 62))
    return saturate(round_shift(products, shift[:, None]), WIDE_BITS), eps


def run(
    op: GatedRmsNorm, constants: GatedNormConstants, inputs: Sequence[Value], context: IntegerPassContext
) -> tuple[Value, ...]:
    gate, x = inputs
    assert isinstance(gate, np.ndarray)
    assert isinstance(x, np.ndarray)
    name, gains = op.outputs[0], constants.gain.values
    active = round_shift(gate * gate_factor(gate, constants.index_shift), SILU_SHIFT)
    context.signed(f"{name}.z", active, WIDE_BITS)
    groups = [_shifted(part, constants) for part in np.split(active * x, op.groups, axis=1)]
    if constants.shift is None:
        ((products, eps),) = groups
        return (normed(name, products, gains, eps, context),)
    parts = [
        normed_heads(products, own, eps, constants.shift, 0)
        for (products, eps), own in zip(groups, np.split(gains, op.groups), strict=True)
    ]
    return (context.signed(name, np.concatenate(parts, axis=1), NARROW_BITS),)
