"""Embedding rows in fixed point. This is the one step that the host computes, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.ops import Embed
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import I64, WIDE_BITS, to_fixed
from edgedec.reference.integer_profile.site import Site, unsupported
from edgedec.reference.integer_profile.values import Value
from edgedec.schemes import FloatWeight, Int8Weight

__all__ = ["EmbedConstants", "prepare", "run"]


@dataclass(frozen=True, kw_only=True)
class EmbedConstants:
    """The table of the embedding, and the unit of the residual."""

    weight: FloatWeight | Int8Weight
    unit: float

    def rows(self, ids: NDArray[np.int32], embeds: NDArray[np.float32] | None) -> I64:
        """Return s27 [n, width], floor(row / unit + 0.5) saturated, for ids int32 [n]; id -k is row k - 1 of ``embeds``."""
        table = np.maximum(ids, 0)
        if isinstance(self.weight, Int8Weight):
            rows = self.weight.codes[table].astype(np.float64) * self.weight.scale[table, None].astype(np.float64)
        else:
            rows = self.weight.values[table].astype(np.float64)
        if (ids < 0).any():
            own = np.zeros((0, rows.shape[1])) if embeds is None else embeds
            rows[ids < 0] = own[-ids[ids < 0] - 1]
        return to_fixed(rows, self.unit, WIDE_BITS)


def prepare(op: Embed, site: Site) -> EmbedConstants:
    weight = site.weights(op.weight)
    if not isinstance(weight, FloatWeight | Int8Weight):
        raise unsupported(
            op, f"the table {op.weight} is ternary; the float targets run it (--device cpu or float_reference)"
        )
    site.set_form(op, site.residual)
    return EmbedConstants(weight=weight, unit=site.residual.unit)


def run(
    op: Embed, constants: EmbedConstants, inputs: Sequence[Value], context: IntegerPassContext
) -> tuple[Value, ...]:
    (ids,) = inputs
    assert isinstance(ids, np.ndarray)
    return (context.signed(op.outputs[0], constants.rows(ids.astype(np.int32), context.embeds), WIDE_BITS),)
