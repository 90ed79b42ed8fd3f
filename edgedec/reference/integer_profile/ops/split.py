"""Columns of a value as values of their own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from edgedec.graph.ops import Split
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import NARROW_BITS
from edgedec.reference.integer_profile.site import Site
from edgedec.reference.integer_profile.values import Value

__all__ = ["prepare", "run"]


def prepare(op: Split, site: Site) -> None:
    for index in range(len(op.outputs)):
        site.set_form(op, site.form(op.inputs[0]), index)


def run(op: Split, constants: None, inputs: Sequence[Value], context: IntegerPassContext) -> tuple[Value, ...]:
    (x,) = inputs
    assert isinstance(x, np.ndarray)
    heads = x.reshape(len(x), op.heads, -1)
    parts = np.split(heads, list(accumulate(op.widths))[:-1], axis=2)
    return tuple(
        context.signed(name, part.reshape(len(x), -1), NARROW_BITS)
        for name, part in zip(op.outputs, parts, strict=True)
    )
