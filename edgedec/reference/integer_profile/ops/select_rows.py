"""Selection of the rows whose logits are requested."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.graph.ops import SelectRows
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.site import Site
from edgedec.reference.integer_profile.values import Value

__all__ = ["prepare", "run"]


def prepare(op: SelectRows, site: Site) -> None:
    site.set_form(op, site.form(op.inputs[0]))


def run(op: SelectRows, constants: None, inputs: Sequence[Value], context: IntegerPassContext) -> tuple[Value, ...]:
    x, rows = inputs
    assert isinstance(x, np.ndarray)
    assert isinstance(rows, np.ndarray)
    return (x[rows],)
