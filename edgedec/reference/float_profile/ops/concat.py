"""Columns of several values side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.ops import Concat
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run"]


def run(op: Concat, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    return (np.concatenate(inputs, axis=1),)
