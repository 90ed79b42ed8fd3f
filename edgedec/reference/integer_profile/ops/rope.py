"""Rotary position embedding with exact products and one rounding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.graph.ops import Rope
from edgedec.reference.float_profile.ops.rope import pair_columns
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import NARROW_BITS, round_shift, saturate
from edgedec.reference.integer_profile.site import Site, unsupported
from edgedec.reference.integer_profile.tables import ROTARY_FRACTION_BITS, rotary
from edgedec.reference.integer_profile.values import Value

__all__ = ["prepare", "run"]


def prepare(op: Rope, site: Site) -> None:
    form = site.form(op.inputs[0])
    if form.width != NARROW_BITS:
        raise unsupported(op, f"{op.inputs[0]} is not a linear's output")
    site.set_form(op, form)


def run(op: Rope, constants: None, inputs: Sequence[Value], context: IntegerPassContext) -> tuple[Value, ...]:
    x, _ = inputs
    assert isinstance(x, np.ndarray)
    heads = x.reshape(len(x), op.heads, op.head_dim)
    turns = rotary(context.positions, op.inverse_frequencies, op.magnitude)
    cos, sin = (table[:, None, :] for table in turns)
    out = heads.copy()
    first, second = pair_columns(op)
    for place, turned in (
        (first, heads[first] * cos - heads[second] * sin),
        (second, heads[second] * cos + heads[first] * sin),
    ):
        out[place] = saturate(round_shift(turned, ROTARY_FRACTION_BITS), NARROW_BITS)
    return (context.signed(op.outputs[0], out.reshape(x.shape), NARROW_BITS),)
