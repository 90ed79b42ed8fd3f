"""Gated activation, activation(gate) * up, with two multiplications of 27 x 18 bits and one table for SiLU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.graph.ops import Activation, GatedActivation
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import I64, NARROW_BITS, WIDE_BITS, round_shift
from edgedec.reference.integer_profile.site import Site, unsupported
from edgedec.reference.integer_profile.tables import GATE_FRACTION_BITS, GATE_LAST, gate_positive
from edgedec.reference.integer_profile.values import Form, Value

__all__ = ["GateConstants", "gate_factor", "prepare", "run"]

SILU_SHIFT = 7
RELU2_SHIFT = 8
UP_SHIFT = 17
_LEFT = 6  # left shift by which a gate with 6 fraction bits gets the 12 of the table


@dataclass(frozen=True, kw_only=True)
class GateConstants:
    """The constants of a gate.

    Members:
        index_shift: shift in 0..10 of |gate| * 2^6 to the fraction bits of the table's argument; unused by relu2.
    """

    activation: Activation
    index_shift: int


def prepare(op: GatedActivation, site: Site) -> GateConstants:
    gate, up = (site.form(name) for name in op.inputs)
    if {gate.width, up.width} != {NARROW_BITS}:
        raise unsupported(op, "its inputs are not outputs of linears")
    relu2 = op.activation == "relu2"
    z_fraction = 2 * gate.fraction - RELU2_SHIFT if relu2 else gate.fraction + 16 - SILU_SHIFT
    site.set_form(op, Form(unit=2.0 ** -(z_fraction + up.fraction - UP_SHIFT), width=WIDE_BITS))
    shift = 0 if relu2 else gate.fraction + _LEFT - GATE_FRACTION_BITS[op.activation]
    return GateConstants(activation=op.activation, index_shift=shift)


def gate_factor(gate: I64, index_shift: int, activation: str = "silu") -> I64:
    """Return the factor of a gate s18 as u16 with 16 fraction bits, 1..65535, from a table for |gate|."""
    argument = np.minimum(round_shift(np.abs(gate) << _LEFT, index_shift), GATE_LAST)
    positive = gate_positive(argument, activation)
    return np.where(gate < 0, (1 << 16) - positive, positive)


def run(
    op: GatedActivation, constants: GateConstants, inputs: Sequence[Value], context: IntegerPassContext
) -> tuple[Value, ...]:
    gate, up = inputs
    assert isinstance(gate, np.ndarray)
    assert isinstance(up, np.ndarray)
    if constants.activation == "relu2":
        z = round_shift(np.square(np.maximum(gate, 0)), RELU2_SHIFT)
    else:
        z = round_shift(gate * gate_factor(gate, constants.index_shift, constants.activation), SILU_SHIFT)
    context.signed(f"{op.outputs[0]}.z", z, WIDE_BITS)
    return (context.signed(op.outputs[0], round_shift(z * up, UP_SHIFT), WIDE_BITS),)
