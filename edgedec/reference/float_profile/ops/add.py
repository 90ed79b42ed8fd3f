"""Residual addition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import Add
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run"]


def run(op: Add, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    a, b = inputs
    return (a + b,)
