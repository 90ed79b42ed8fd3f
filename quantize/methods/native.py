"""Natively ternary weights: taken as they are, and checked that they are ternary."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.errors import UnsupportedError

__all__ = ["native_ternary", "native_ternary_groups"]

F32 = npt.NDArray[np.float32]


def native_ternary(weight: npt.NDArray[Any], name: str = "tensor") -> tuple[npt.NDArray[np.int8], np.float32]:
    """Trits int8 in {-1, 0, 1} and the one scale, so that ``scale * trits`` equals ``weight`` exactly.

    ``weight`` [out, in] is float32, float16 or bfloat16; ``name`` is for messages. The scale is the one nonzero
    magnitude (not the mean of magnitudes, which padding changes); a tensor of zeros has scale 0.

    Raises: UnsupportedError if there is more than one nonzero magnitude, or a value that is not finite.
    """
    values = weight.astype(np.float32, copy=False)
    scale = np.float32(np.abs(values).max(initial=0))
    _require_finite(values, name)
    trits = _signs(values)
    if not np.array_equal(scale * trits, values):
        distinct = np.unique(np.abs(values[values != 0])).size
        raise UnsupportedError(
            f"{name} is not ternary: it has {distinct} distinct nonzero magnitudes, a ternary tensor has 1; "
            "quantize it with --planes 2"
        )
    return trits, scale


def native_ternary_groups(
    weight: npt.NDArray[Any], group_size: int, name: str = "tensor"
) -> tuple[npt.NDArray[np.int8], F32]:
    """As ``native_ternary`` with a scale per row and ``group_size`` columns: trits [out, in], scales [out, groups].

    The last group of a row may be shorter. A group of zeros has scale 0.

    Raises: UnsupportedError if a group has more than one nonzero magnitude, or a value that is not finite.
    """
    values = weight.astype(np.float32, copy=False)
    _require_finite(values, name)
    starts = np.arange(0, values.shape[1], group_size)
    scales: F32 = np.maximum.reduceat(np.abs(values), starts, axis=1)
    trits = _signs(values)
    for group, start in enumerate(starts):
        some = slice(start, start + group_size)
        wrong = (scales[:, group, None] * trits[:, some] != values[:, some]).any(axis=1)
        if wrong.any():
            raise UnsupportedError(
                f"{name} is not ternary in groups of {group_size}: row {int(wrong.argmax())} has several nonzero "
                f"magnitudes from column {start} on; quantize it with --planes 2"
            )
    return trits, scales


def _require_finite(values: F32, name: str) -> None:
    if not np.isfinite(values).all():
        raise UnsupportedError(f"{name} holds values that are not finite; a ternary tensor holds -s, 0 and s only")


def _signs(values: F32) -> npt.NDArray[np.int8]:
    return (values > 0).astype(np.int8) - (values < 0).astype(np.int8)
