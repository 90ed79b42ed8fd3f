"""Natively ternary weights: taken as they are, and checked that they are ternary."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.errors import UnsupportedError

__all__ = ["native_ternary"]


def native_ternary(weight: npt.NDArray[Any], name: str = "tensor") -> tuple[npt.NDArray[np.int8], np.float32]:
    """Trits int8 in {-1, 0, 1} and the one scale, so that ``scale * trits`` equals ``weight`` exactly.

    ``weight`` [out, in] is float32, float16 or bfloat16; ``name`` is for messages. The scale is the one nonzero
    magnitude (not the mean of magnitudes, which padding changes); a tensor of zeros has scale 0.

    Raises: UnsupportedError if there is more than one nonzero magnitude, or a value that is not finite.
    """
    values = weight.astype(np.float32, copy=False)
    scale = np.float32(np.abs(values).max(initial=0))
    if not np.isfinite(scale):
        raise UnsupportedError(f"{name} holds values that are not finite; a ternary tensor holds -s, 0 and s only")
    trits = (values > 0).astype(np.int8) - (values < 0).astype(np.int8)
    if not np.array_equal(scale * trits, values):
        distinct = np.unique(np.abs(values[values != 0])).size
        raise UnsupportedError(
            f"{name} is not ternary: it has {distinct} distinct nonzero magnitudes, a ternary tensor has 1; "
            "quantize it with --planes 2"
        )
    return trits, scale
