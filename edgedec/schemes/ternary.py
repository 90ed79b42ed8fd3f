"""Weights that are a scaled sum of ternary planes."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError
from edgedec.schemes.part import Array, StoredPart, check_finite

__all__ = ["TernaryScheme", "TernaryWeight", "fold", "split"]

_CODES_AT_ONCE = 1 << 18  # codes that are packed in one step, so that they stay in a core's cache


@dataclass(frozen=True, kw_only=True)
class TernaryScheme:
    """A sum of ``planes`` ternary matrices: weight[o, i] = sum over p of scale[p, o, i // group_size] * trit[p, o, i].

    With ``group_size`` 0, the tensor has one scale (a natively ternary checkpoint). Codes are trit + 2 in two bits, four in
    a byte, lowest bits first; rows are padded with zero trits to a multiple of ``block`` columns. This is the layout of
    MatMulNBits.

    With ``tied``, the scale of a plane is 3 times that of the next one, and only the scales of the last plane are stored,
    so that a weight is the last plane's scale times one integer: 3 t1 + t2, or 9 t1 + 3 t2 + t3.

    With ``half_scales``, the scales of groups are stored as float16, as in the checkpoints that come with such scales.
    """

    kind: ClassVar[str] = "ternary"
    planes: int = 1
    group_size: int = 0
    tied: bool = False
    half_scales: bool = False

    def __post_init__(self) -> None:
        # In Python, JSON's true and 1.0 are equal to 1.
        if type(self.planes) is not int or self.planes not in (1, 2, 3):
            raise BundleError(f"ternary planes must be 1, 2 or 3, not {reprlib.repr(self.planes)}")
        if type(self.group_size) is not int or self.group_size not in (0, 32, 64, 128):
            raise BundleError(f"ternary group_size must be 0, 32, 64 or 128, not {reprlib.repr(self.group_size)}")
        if not isinstance(self.tied, bool):
            raise BundleError(f"ternary tied must be true or false, not {reprlib.repr(self.tied)}")
        if self.tied and (self.planes == 1 or not self.group_size):
            raise BundleError("ternary tied needs 2 or 3 planes and a group_size of 32, 64 or 128")
        if not isinstance(self.half_scales, bool):
            raise BundleError(f"ternary half_scales must be true or false, not {reprlib.repr(self.half_scales)}")
        if self.half_scales and (self.tied or not self.group_size):
            raise BundleError("ternary half_scales needs a group_size of 32, 64 or 128, and planes that are not tied")

    @property
    def scale_dtype(self) -> np.dtype[Any]:
        """The dtype of the stored scales: float16 with ``half_scales``, else float32."""
        return np.dtype(np.float16 if self.half_scales else np.float32)

    def block(self, inputs: int) -> int:
        """Return the number of columns to whose multiple a row is padded."""
        if self.group_size:
            return self.group_size
        return next((size for size in (128, 64) if inputs % size == 0), 32)

    def groups(self, inputs: int) -> int:
        return -(-inputs // self.group_size) if self.group_size else 1

    def parts(self, shape: tuple[int, ...]) -> dict[str, StoredPart]:
        outputs, inputs = shape
        block = self.block(inputs)
        stored = 1 if self.tied else self.planes
        scales = (stored, outputs, self.groups(inputs)) if self.group_size else (1,)
        return {
            "codes": StoredPart(
                dtype=np.dtype(np.uint8), shape=(self.planes, outputs, -(-inputs // block), block // 4)
            ),
            "scale": StoredPart(dtype=self.scale_dtype, shape=scales),
        }

    def opened_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes that ``open`` adds to the stored parts: a byte for each trit, and float16 scales as float32."""
        scales = self.parts(shape)["scale"].nbytes
        return self.planes * prod(shape) + (2 * scales if self.half_scales else 0)

    def pack(self, trits: NDArray[np.int8]) -> NDArray[np.uint8]:
        """Pack trits int8 [planes, out, in] to codes uint8 [planes, out, blocks, block / 4]."""
        planes, outputs, inputs = trits.shape
        block = self.block(inputs)
        width = -(-inputs // block) * block
        codes = np.empty((planes * outputs, width // 4), np.uint8)
        rows = trits.view(np.uint8).reshape(planes * outputs, inputs)
        step = max(1, _CODES_AT_ONCE // width)
        for start in range(0, len(rows), step):
            chunk = rows[start : start + step]
            padded = np.full((len(chunk), width), 2, np.uint8)
            padded[:, :inputs] += chunk  # wraps: 2 + 255 is 1
            four = padded.view("<u4")  # codes at bits 0, 8, 16 and 24
            four |= four >> 6  # pairs of them at bits 0 and 16
            four |= four >> 12
            codes[start : start + step] = four
        return codes.reshape(planes, outputs, -1, block // 4)

    def unpack(self, name: str, codes: NDArray[np.uint8], inputs: int) -> NDArray[np.int8]:
        """Unpack the codes of ``pack`` to trits int8 [planes, out, in].

        Raises:
            BundleError: a code is 0, which is not a trit, or padding is not zero trits.
        """
        planes, outputs = codes.shape[:2]
        four = np.stack([(codes >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-1)
        trits = four.reshape(planes, outputs, -1).view(np.int8) - np.int8(2)
        if (trits == -2).any() or trits[..., inputs:].any():
            raise BundleError(f"tensor {name}: its codes are not trits; quantize the checkpoint again")
        return np.ascontiguousarray(trits[..., :inputs])

    def open(self, name: str, shape: tuple[int, ...], arrays: Mapping[str, Array]) -> TernaryWeight:
        check_finite(name, "scale", arrays["scale"])
        return TernaryWeight(
            trits=self.unpack(name, arrays["codes"], shape[1]),
            scale=np.asarray(arrays["scale"], np.float32),
            group_size=self.group_size,
            tied=self.tied,
        )


def fold(trits: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return the integers int8 [...] whose digits are the trits [planes, ...]: 3 t1 + t2, or 9 t1 + 3 t2 + t3."""
    total: NDArray[np.int8] = trits[0]
    for plane in trits[1:]:
        total = total * np.int8(3) + plane
    return total


def split(codes: NDArray[np.int8], *, tied: bool) -> NDArray[np.int8]:
    """Return integers [...] in -2..2 as two planes of trits [2, ...]: 3 t1 + t2 with tied scales, else t1 + t2."""
    if tied:
        high = (np.abs(codes) > 1) * np.sign(codes)
        return np.stack([high, codes - 3 * high])
    low = np.clip(codes, -1, 1)
    return np.stack([low, codes - low])


@dataclass(frozen=True, kw_only=True)
class TernaryWeight:
    """A weight stored as a scaled sum of ternary planes."""

    trits: NDArray[np.int8]  # [planes, out, in]
    scale: NDArray[np.float32]  # [planes, out, groups], or [1] when group_size is 0; [1, out, groups] of tied planes
    group_size: int
    tied: bool = False

    def plane_scales(self) -> NDArray[np.float32]:
        """Return the scales of all planes: those of tied planes are 3 times those of the next plane."""
        if not self.tied:
            return self.scale
        powers = np.float32(3) ** np.arange(len(self.trits) - 1, -1, -1, dtype=np.float32)
        return self.scale * powers[:, None, None]

    def column_scales(self) -> NDArray[np.float32]:
        """[planes, out, in], or [1, 1, 1]: broadcasts against the trits."""
        if not self.group_size:
            return self.scale.reshape(1, 1, 1)
        return np.repeat(self.plane_scales(), self.group_size, axis=2)[..., : self.trits.shape[2]]

    def rows(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        scale = self.scale[:, ids] if self.group_size else self.scale
        return TernaryWeight(trits=self.trits[:, ids], scale=scale, group_size=self.group_size, tied=self.tied).dense()

    def dense(self) -> NDArray[np.float32]:
        if self.tied:
            spread = np.repeat(self.scale[0], self.group_size, axis=1)[:, : self.trits.shape[2]]
            folded: NDArray[np.float32] = fold(self.trits) * spread
            return folded
        dense: NDArray[np.float32] = (self.trits * self.column_scales()).sum(axis=0, dtype=np.float32)
        return dense
