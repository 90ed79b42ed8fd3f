"""Columns of a value as values of their own, head by head."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import Split
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run"]


def run(op: Split, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    (x,) = inputs
    heads = x.reshape(len(x), op.heads, -1)
    parts = np.split(heads, list(accumulate(op.widths))[:-1], axis=2)
    return tuple(part.reshape(len(x), op.heads * width) for part, width in zip(parts, op.widths, strict=True))
