"""A value times the logistic function of its gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import SigmoidGate
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run", "sigmoid"]


def sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):  # exp(-x) may overflow to infinity; the quotient is then 0, which is correct
        result: NDArray[np.float32] = np.divide(np.float32(1), 1 + np.exp(-x), dtype=np.float32)
        return result


def run(op: SigmoidGate, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    gate, x = inputs
    return (x * sigmoid(gate),)
