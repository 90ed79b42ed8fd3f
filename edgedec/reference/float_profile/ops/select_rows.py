"""Selection of the rows whose logits are requested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import SelectRows
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run"]


def run(op: SelectRows, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    x, rows = inputs
    return (x[rows],)
