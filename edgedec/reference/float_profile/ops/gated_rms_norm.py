"""Root mean square normalization of gated columns, in groups, with sums in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import GatedRmsNorm
from edgedec.reference.float_profile.model import FloatPassContext
from edgedec.reference.float_profile.ops.gated_activation import silu
from edgedec.reference.float_profile.ops.rms_norm import normalized

__all__ = ["run"]


def run(op: GatedRmsNorm, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    gate, x = inputs
    parts = (silu(gate) * x).reshape(len(x) * op.groups, -1)
    return (normalized(parts, op.eps).reshape(x.shape) * context.weights(op.weight).dense(),)
