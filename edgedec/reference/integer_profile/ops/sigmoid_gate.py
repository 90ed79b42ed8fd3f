"""A value times the logistic function of its gate, from the table of the gated activation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.graph.ops import SigmoidGate
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import NARROW_BITS, WIDE_BITS, round_shift
from edgedec.reference.integer_profile.ops.gated_activation import gate_factor
from edgedec.reference.integer_profile.site import Site, unsupported
from edgedec.reference.integer_profile.tables import GATE_FRACTION_BITS
from edgedec.reference.integer_profile.values import Value

__all__ = ["prepare", "run"]


def prepare(op: SigmoidGate, site: Site) -> int:
    """Return the shift of |gate| * 2^6 to the 12 fraction bits of the table.

    Raises:
        UnsupportedError: the gate is not the output of a linear.
    """
    gate, x = (site.form(name) for name in op.inputs)
    if gate.width != NARROW_BITS:
        raise unsupported(op, "its gate is not the output of a linear")
    site.set_form(op, x)
    return gate.fraction + 6 - GATE_FRACTION_BITS["silu"]


def run(op: SigmoidGate, constants: int, inputs: Sequence[Value], context: IntegerPassContext) -> tuple[Value, ...]:
    gate, x = inputs
    assert isinstance(gate, np.ndarray)
    assert isinstance(x, np.ndarray)
    return (context.signed(op.outputs[0], round_shift(x * gate_factor(gate, constants), 16), WIDE_BITS),)
