"""Columns of several values side by side, head by head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import Concat
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run"]


def run(op: Concat, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    rows, pieces = len(inputs[0]), []
    for x, (_, shared, gap) in zip(inputs, op.parts(), strict=True):
        own = np.repeat(x[:, None], op.heads, axis=1) if shared else x.reshape(rows, op.heads, -1)
        pieces += [own, np.zeros((rows, op.heads, gap), np.float32)]
    return (np.concatenate(pieces, axis=2).reshape(rows, -1),)
