"""Quantize weights to int4: codes -8..7 times a float16 scale for each row and group of 32 columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.quantize.methods.grid import Grid
from edgedec.quantize.methods.planes import Statistics, quantize_groups
from edgedec.schemes import Int4Scheme

__all__ = ["int4_parts"]

_CODES = Grid(-8, 7)


def int4_parts(weight: npt.NDArray[np.float32], statistics: Statistics | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return the stored parts of ``weight`` float32 [out, in]: packed codes and scales.

    Without statistics, the squared error of the weights is minimised; with statistics, that of the layer's output, with
    error compensation as for ternary planes.

    Raises:
        ScaleRangeError: scales are outside the range in which float16 keeps all bits.
        ValueError: the weight is not a matrix, or is not finite.
    """
    codes, scales = quantize_groups(weight, _CODES, Int4Scheme.GROUP, statistics, dtype=np.float16)
    stored = (codes[0] + np.int8(8)).view(np.uint8)
    return {"codes": Int4Scheme().pack(stored), "scale": scales[0]}
