"""Gated activation: activation(gate) * up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import GatedActivation
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run", "silu"]

_ROOT, _CUBIC = np.float32(np.sqrt(2 / np.pi)), np.float32(0.044715)


def silu(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return x / (1 + exp(-x))."""
    with np.errstate(over="ignore"):  # exp(-x) may overflow to infinity; the quotient is then 0, which is correct
        result: NDArray[np.float32] = x / (1 + np.exp(-x))
        return result


def run(
    op: GatedActivation, inputs: Sequence[NDArray[Any]], context: FloatPassContext
) -> tuple[NDArray[np.float32], ...]:
    gate, up = inputs
    if op.activation == "relu2":
        return (np.square(np.maximum(gate, 0)) * up,)
    if op.activation == "gelu_tanh":
        with np.errstate(over="ignore"):  # a cube may overflow to infinity; its tanh is then 1, which is correct
            inner = _ROOT * (gate + _CUBIC * gate * gate * gate)
        return (gate / 2 * (1 + np.tanh(inner)) * up,)
    return (silu(gate) * up,)
