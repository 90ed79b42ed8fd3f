"""Arrays that a scheme stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError

__all__ = ["Array", "StoredPart", "check_finite"]

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class StoredPart:
    """The dtype and shape of one stored array, which is little-endian and C-contiguous."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        count = self.dtype.itemsize
        for size in self.shape:
            count *= size
        return count


def check_finite(name: str, part: str, array: Array) -> None:
    """Check the values of one part of the tensor ``name``.

    Raises:
        BundleError: a value is NaN or infinite.
    """
    if not np.isfinite(array.astype(np.float32, copy=False)).all():
        raise BundleError(f"tensor {name}: its {part} holds NaN or infinity; quantize the checkpoint again")
