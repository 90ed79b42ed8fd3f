"""The difference of the two parts of each pair of heads, the second times a learned factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import DifferentialHeads
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run"]


def run(
    op: DifferentialHeads, inputs: Sequence[NDArray[Any]], context: FloatPassContext
) -> tuple[NDArray[np.float32], ...]:
    (x,) = inputs
    q1, k1, q2, k2 = (context.weights(name).dense() for name in op.factors)
    factor = np.exp((q1 * k1).sum()) - np.exp((q2 * k2).sum()) + np.float32(op.start)
    parts = x.reshape(len(x), op.pairs, 2, -1)
    return ((parts[:, :, 0] - factor * parts[:, :, 1]).reshape(len(x), -1),)
