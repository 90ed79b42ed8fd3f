"""Layer norm: rows without their mean, divided by the root of their variance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import LayerNorm
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run"]


def run(op: LayerNorm, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    (x,) = inputs
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.square(centred).mean(axis=1, keepdims=True)
    weight, bias = context.weights(op.weight).dense(), context.weights(op.bias).dense()
    return (centred / np.sqrt(variance + np.float32(op.eps)) * weight + bias,)
