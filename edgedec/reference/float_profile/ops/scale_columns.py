"""Columns times constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import ScaleColumns
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run"]


def run(op: ScaleColumns, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    return (inputs[0] * np.repeat(np.array(op.factors, np.float32), op.widths),)
