"""Weights of 4 bits in groups of 32 columns."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError
from edgedec.schemes.part import Array, StoredPart, check_finite

__all__ = ["Int4Scheme", "Int4Weight"]


@dataclass(frozen=True, kw_only=True)
class Int4Scheme:
    """Codes 0..15 in groups of 32 columns: weight[o, i] = scale[o, i // 32] * (code[o, i] - 8), with float16 scales.

    With ``offset``, weight[o, i] = scale[o, g] * code[o, i] - minimum[o, g], where g is i // 32. Both numbers are products
    of a float16, which 8 neighbouring groups share, and an integer 0..63: scale[o, g] = factors[o, g // 8, 0] *
    steps[o, g, 0], and minimum[o, g] = factors[o, g // 8, 1] * steps[o, g, 1], which are exact in float32.

    Two codes share a byte, the first in the lower bits; rows are padded with codes 8 (with ``offset``, 0). This is the
    layout of MatMulNBits. The two forms are those of GGUF's Q4_0 and Q4_K.
    """

    kind: ClassVar[str] = "int4"
    offset: bool = False

    GROUP: ClassVar[int] = 32  # columns that share a scale
    SHARED: ClassVar[int] = 8  # groups that share factors
    group_size: ClassVar[int] = GROUP

    def __post_init__(self) -> None:
        if not isinstance(self.offset, bool):
            raise BundleError(f"int4 offset must be true or false, not {reprlib.repr(self.offset)}")

    @property
    def zero(self) -> int:
        """The code of padding, and without ``offset`` that of the weight 0."""
        return 0 if self.offset else 8

    def groups(self, inputs: int) -> int:
        return -(-inputs // self.GROUP)

    def parts(self, shape: tuple[int, ...]) -> dict[str, StoredPart]:
        outputs, inputs = shape
        groups, half, byte = self.groups(inputs), np.dtype(np.float16), np.dtype(np.uint8)
        codes = StoredPart(dtype=byte, shape=(outputs, groups, self.GROUP // 2))
        if not self.offset:
            return {"codes": codes, "scale": StoredPart(dtype=half, shape=(outputs, groups))}
        return {
            "codes": codes,
            "factors": StoredPart(dtype=half, shape=(outputs, -(-groups // self.SHARED), 2)),
            "steps": StoredPart(dtype=byte, shape=(outputs, groups, 2)),
        }

    def pack(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Pack codes uint8 [out, in] in 0..15 to [out, groups, 16]."""
        outputs, inputs = codes.shape
        groups = self.groups(inputs)
        padded = np.full((outputs, groups * self.GROUP), self.zero, np.uint8)
        padded[:, :inputs] = codes
        packed: NDArray[np.uint8] = padded[:, 0::2] | padded[:, 1::2] << np.uint8(4)
        return packed.reshape(outputs, groups, self.GROUP // 2)

    def unpack(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Unpack the codes of ``pack`` to uint8 [out, groups * 32], with the padding."""
        return np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)

    def open(self, name: str, shape: tuple[int, ...], arrays: Mapping[str, Array]) -> Int4Weight:
        """Return the weight.

        Raises:
            BundleError: a scale is not finite, a step is over 63, or padding is not ``zero``.
        """
        codes = self.unpack(arrays["codes"])
        if (codes[:, shape[1] :] != self.zero).any():
            raise BundleError(
                f"tensor {name}: the padding of its codes is not {self.zero}; quantize the checkpoint again"
            )
        codes = codes[:, : shape[1]]
        if not self.offset:
            check_finite(name, "scale", arrays["scale"])
            return Int4Weight(codes=codes.view(np.int8) - np.int8(8), scale=arrays["scale"].astype(np.float32))
        check_finite(name, "factors", arrays["factors"])
        if arrays["steps"].max(initial=0) > 63:
            raise BundleError(f"tensor {name}: its steps are not in 0..63; quantize the checkpoint again")
        scale, minimum = np.moveaxis(self.scales(arrays["factors"], arrays["steps"]), -1, 0)
        return Int4Weight(codes=codes.view(np.int8), scale=scale, minimum=minimum)

    def scales(self, factors: NDArray[np.float16], steps: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return scale and minimum of each group, float32 [out, groups, 2]."""
        spread = np.repeat(factors.astype(np.float32), self.SHARED, axis=1)[:, : steps.shape[1]]
        product: NDArray[np.float32] = spread * steps
        return product


@dataclass(frozen=True, kw_only=True)
class Int4Weight:
    """A weight stored as codes in groups of 32 columns: scale * code, less a minimum if there is one."""

    codes: NDArray[np.int8]  # [out, in], -8..7 or, with a minimum, 0..15
    scale: NDArray[np.float32]  # [out, groups]
    minimum: NDArray[np.float32] | None = None  # [out, groups]

    def _spread(self, groups: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.repeat(groups, Int4Scheme.GROUP, axis=1)[:, : self.codes.shape[1]]

    def dense(self) -> NDArray[np.float32]:
        scaled: NDArray[np.float32] = self.codes * self._spread(self.scale)
        return scaled if self.minimum is None else scaled - self._spread(self.minimum)
