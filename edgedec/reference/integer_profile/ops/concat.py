"""Columns of values side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.graph.ops import Concat
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import WIDE_BITS
from edgedec.reference.integer_profile.site import Site, unsupported
from edgedec.reference.integer_profile.values import Value

__all__ = ["prepare", "run"]


def prepare(op: Concat, site: Site) -> None:
    """Set the form.

    Raises:
        UnsupportedError: the values have different units.
    """
    first, *others = (site.form(name) for name in op.inputs)
    if any(form != first for form in others):
        raise unsupported(op, f"{', '.join(op.inputs)} have different units")
    site.set_form(op, first)


def run(op: Concat, constants: None, inputs: Sequence[Value], context: IntegerPassContext) -> tuple[Value, ...]:
    parts = [part for part in inputs if isinstance(part, np.ndarray)]
    return (context.signed(op.outputs[0], np.concatenate(parts, axis=1), WIDE_BITS),)
