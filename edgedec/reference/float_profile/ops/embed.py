"""Embedding lookup. Negative ids select rows of the pass's own embeddings, which are scaled like those of the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import Embed
from edgedec.reference.float_profile.model import FloatPassContext
from edgedec.schemes import Int4Weight

__all__ = ["run"]


def run(op: Embed, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    (ids,) = inputs
    weight = context.weights(op.weight)
    assert not isinstance(weight, Int4Weight), "embeddings are never int4"
    out = weight.rows(np.maximum(ids, 0))
    embeds = np.zeros((0, out.shape[1]), np.float32) if context.embeds is None else context.embeds
    out[ids < 0] = embeds[-ids[ids < 0] - 1]
    return (out if op.scale == 1 else out * np.float32(op.scale),)
