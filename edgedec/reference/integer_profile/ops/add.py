"""Residual addition: sat(a + b, 27)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.graph.ops import Add
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import WIDE_BITS, saturate
from edgedec.reference.integer_profile.site import Site, unsupported
from edgedec.reference.integer_profile.values import Value

__all__ = ["prepare", "run"]


def prepare(op: Add, site: Site) -> None:
    """Check and set the forms.

    Raises:
        UnsupportedError: a summand does not have the residual's unit.
    """
    for name in op.inputs:
        if site.form(name) != site.residual:
            raise unsupported(op, f"{name} is not in the residual's fixed point")
    site.set_form(op, site.residual)


def run(op: Add, constants: None, inputs: Sequence[Value], context: IntegerPassContext) -> tuple[Value, ...]:
    a, b = inputs
    assert isinstance(a, np.ndarray)
    assert isinstance(b, np.ndarray)
    return (context.signed(op.outputs[0], saturate(a + b, WIDE_BITS), WIDE_BITS),)
