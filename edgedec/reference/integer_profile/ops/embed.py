"""Embedding rows in fixed point. This is the one step that the host computes, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import Embed
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import I64, WIDE_BITS, to_fixed
from edgedec.reference.integer_profile.site import Site
from edgedec.reference.integer_profile.values import Value
from edgedec.schemes import EmbeddingWeight, FloatWeight, Int8Weight

__all__ = ["EmbedConstants", "prepare", "run"]


@dataclass(frozen=True, kw_only=True)
class EmbedConstants:
    """The table of the embedding, the unit of the residual, and the factor of the rows."""

    weight: EmbeddingWeight
    unit: float
    scale: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns of the table."""
        if isinstance(self.weight, FloatWeight):
            return self.weight.values.shape
        return self.weight.codes.shape if isinstance(self.weight, Int8Weight) else self.weight.trits.shape[1:]

    def rows(self, ids: NDArray[np.int32], embeds: NDArray[np.float32] | None) -> I64:
        """Return s27 [n, width], floor(row * scale / unit + 0.5) saturated, for ids int32 [n].

        Id -k is row k - 1 of ``embeds``.
        """
        table = np.maximum(ids, 0)
        if isinstance(self.weight, Int8Weight):
            rows = self.weight.codes[table].astype(np.float64) * self.weight.scale[table, None].astype(np.float64)
        else:
            rows = self.weight.rows(table).astype(np.float64)
        if (ids < 0).any():
            own = np.zeros((0, rows.shape[1])) if embeds is None else embeds
            rows[ids < 0] = own[-ids[ids < 0] - 1]
        return to_fixed(rows * self.scale, self.unit, WIDE_BITS)


def prepare(op: Embed, site: Site) -> EmbedConstants:
    weight = site.weights(op.weight)
    assert isinstance(weight, EmbeddingWeight), "embeddings are never int4"
    site.set_form(op, site.residual)
    return EmbedConstants(weight=weight, unit=site.residual.unit, scale=op.scale)


def run(
    op: Embed, constants: EmbedConstants, inputs: Sequence[Value], context: IntegerPassContext
) -> tuple[Value, ...]:
    (ids,) = inputs
    assert isinstance(ids, np.ndarray)
    return (context.signed(op.outputs[0], constants.rows(ids.astype(np.int32), context.embeds), WIDE_BITS),)
