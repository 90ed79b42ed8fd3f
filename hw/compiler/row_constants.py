"""The constants of each row of a matrix as the accelerator reads them."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["ITEM_BYTES", "pack_rows"]

ITEM_BYTES = 8  # bytes of a row's constants
_BIAS_BITS, _SHIFT_BITS, _WEIGHT_BITS = 27, 5, 16  # bits of the fields


def pack_rows(bias: NDArray[np.int64], shift: NDArray[np.int64], weight: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Pack items for edgedec.hw.matrix.drain.row_constants.

    Args:
        bias: int64 [rows], s27 within its symmetric range, in units of the output.
        shift: int64 [rows], u5.
        weight: int64 [rows], u16.

    Returns:
        uint8 [rows, 8], little endian: u32 with the bias in bits 0 .. 26 and the shift above it; u16 weight; two bytes
        of zero.

    Raises:
        ValueError: a value does not fit, or the lengths differ.
    """
    most = (1 << (_BIAS_BITS - 1)) - 1
    limits = {"bias": (-most, most), "shift": (0, (1 << _SHIFT_BITS) - 1), "weight": (0, (1 << _WEIGHT_BITS) - 1)}
    rows = len(bias)
    for (name, (least, largest)), values in zip(limits.items(), (bias, shift, weight), strict=True):
        if values.shape != (rows,):
            raise ValueError(f"{name} must be [{rows}], as bias is, not {values.shape}")
        if rows and not least <= int(values.min()) <= int(values.max()) <= largest:
            raise ValueError(f"{name} must be {least}..{largest}, not {int(values.min())}..{int(values.max())}")
    whole = (bias & ((1 << _BIAS_BITS) - 1)) | (shift << _BIAS_BITS) | (weight << (_BIAS_BITS + _SHIFT_BITS))
    return np.ascontiguousarray(whole.astype("<u8")).view(np.uint8).reshape(rows, ITEM_BYTES)
