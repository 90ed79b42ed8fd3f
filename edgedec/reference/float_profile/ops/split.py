"""Columns of a value as values of their own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.ops import Split
from edgedec.reference.float_profile.model import FloatPassContext

__all__ = ["run"]


def run(op: Split, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    (x,) = inputs
    return tuple(np.split(x, list(accumulate(op.widths))[:-1], axis=1))
