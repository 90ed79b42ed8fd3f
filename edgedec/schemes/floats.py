"""Weights that are stored as floating-point numbers."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError
from edgedec.schemes.part import Array, StoredPart, check_finite

__all__ = ["FLOAT_DTYPES", "FloatScheme", "FloatWeight"]

FLOAT_DTYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True, kw_only=True)
class FloatScheme:
    """The values themselves, in any shape."""

    kind: ClassVar[str] = "float"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, str) or self.dtype not in FLOAT_DTYPES:
            raise BundleError(f"float dtype must be one of {', '.join(FLOAT_DTYPES)}, not {reprlib.repr(self.dtype)}")

    def parts(self, shape: tuple[int, ...]) -> dict[str, StoredPart]:
        return {"values": StoredPart(dtype=FLOAT_DTYPES[self.dtype], shape=shape)}

    def open(self, name: str, shape: tuple[int, ...], arrays: Mapping[str, Array]) -> FloatWeight:
        check_finite(name, "values", arrays["values"])
        return FloatWeight(values=arrays["values"])


@dataclass(frozen=True, kw_only=True)
class FloatWeight:
    """A weight stored as floats."""

    values: Array

    def dense(self) -> NDArray[np.float32]:
        return self.values.astype(np.float32, copy=False)

    def rows(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        return self.values[ids].astype(np.float32)
