"""Quantize weights to int8 with one scale per output channel: ``w ~ scale * code``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["quantize_int8"]


def quantize_int8(weight: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Return codes int8 [out, in] in -127..127 and scales float32 [out] for ``weight`` float32 [out, in].

    The scale is the row's largest magnitude / 127, so every element is within half a scale of its value; a row of zeros
    has scale 0. Codes round half to even.

    Raises:
        ValueError: the weight is not a matrix with columns, or is not finite.
    """
    if weight.ndim != 2 or weight.shape[1] == 0:
        raise ValueError(f"weight must be a matrix with columns, its shape is {weight.shape}")
    largest = np.maximum(weight.max(axis=1), -weight.min(axis=1)).astype(np.float64)
    if not np.isfinite(largest).all():
        raise ValueError("weight must be finite")
    scale = (largest / 127).astype(np.float32)
    # Among subnormal numbers the quotient may round down to zero, or so far that a code would be 128 or more.
    short = (largest > 0) & (largest >= 127.5 * scale.astype(np.float64))
    scale[short] = np.nextafter(scale[short], np.float32(np.inf))
    divisor = np.where(scale > 0, scale, np.float32(1))
    codes = np.empty(weight.shape, np.int8)
    for row, by, out in zip(weight, divisor, codes, strict=True):
        out[:] = np.rint(row / np.float64(by))
    return codes, scale
