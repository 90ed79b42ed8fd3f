"""Weights of 8 bits with one scale per output row."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError
from edgedec.schemes.part import Array, StoredPart, check_finite

__all__ = ["Int8Scheme", "Int8Weight"]


@dataclass(frozen=True, kw_only=True)
class Int8Scheme:
    """One scale per output row: weight[o, i] = code[o, i] * scale[o], codes in -127..127.

    With ``rows``, codes are stored as [out, in]. edgedec writes this form, because its operator reads the codes of a product
    sequentially and the rows of an embedding one by one. Without ``rows``, codes are [in, out]: linears of older bundles.
    """

    kind: ClassVar[str] = "int8"
    rows: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.rows, bool):
            raise BundleError(f"int8 rows must be true or false, not {reprlib.repr(self.rows)}")

    def parts(self, shape: tuple[int, ...]) -> dict[str, StoredPart]:
        outputs, inputs = shape
        return {
            "codes": StoredPart(dtype=np.dtype(np.int8), shape=shape if self.rows else (inputs, outputs)),
            "scale": StoredPart(dtype=np.dtype(np.float32), shape=(outputs,)),
        }

    def open(self, name: str, shape: tuple[int, ...], arrays: Mapping[str, Array]) -> Int8Weight:
        check_finite(name, "scale", arrays["scale"])
        if arrays["codes"].min() < -127:
            raise BundleError(f"tensor {name}: its codes are not in -127..127; quantize the checkpoint again")
        codes = arrays["codes"] if self.rows else arrays["codes"].T
        return Int8Weight(codes=codes, scale=arrays["scale"])


@dataclass(frozen=True, kw_only=True)
class Int8Weight:
    """A weight stored as int8 codes with one scale per output row."""

    codes: NDArray[np.int8]  # [out, in]
    scale: NDArray[np.float32]  # [out]

    def dense(self) -> NDArray[np.float32]:
        return self.codes.astype(np.float32) * self.scale[:, None]

    def rows(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        return self.codes[ids].astype(np.float32) * self.scale[ids, None]
