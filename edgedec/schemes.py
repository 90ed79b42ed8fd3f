"""The storage schemes of weights and their meaning: float, int8, ternary planes and int4.

A *scheme* is a small frozen description in the bundle's manifest; a *weight* is a scheme with its arrays. The bytes of every
part follow from scheme and shape alone, so that a planner can count them without opening a file.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError

__all__ = [
    "FloatScheme",
    "FloatWeight",
    "Int4Scheme",
    "Int4Weight",
    "Int8Scheme",
    "Int8Weight",
    "Scheme",
    "StoredPart",
    "TernaryScheme",
    "TernaryWeight",
    "Weight",
    "fold",
    "scheme_features",
    "scheme_from_json",
    "scheme_to_json",
]

Array = NDArray[Any]

_CODES_AT_ONCE = 1 << 18  # codes that are packed in one step, so that they stay in a core's cache

FLOAT_DTYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


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


def _finite(name: str, part: str, array: Array) -> None:
    if not np.isfinite(array.astype(np.float32, copy=False)).all():
        raise BundleError(f"tensor {name}: its {part} holds NaN or infinity; quantize the checkpoint again")


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
        _finite(name, "values", arrays["values"])
        return FloatWeight(values=arrays["values"])


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
        _finite(name, "scale", arrays["scale"])
        if arrays["codes"].min() < -127:
            raise BundleError(f"tensor {name}: its codes are not in -127..127; quantize the checkpoint again")
        codes = arrays["codes"] if self.rows else arrays["codes"].T
        return Int8Weight(codes=codes, scale=arrays["scale"])


@dataclass(frozen=True, kw_only=True)
class TernaryScheme:
    """A sum of ``planes`` ternary matrices: weight[o, i] = sum over p of scale[p, o, i // group_size] * trit[p, o, i].

    With ``group_size`` 0, the tensor has one scale (a natively ternary checkpoint). Codes are trit + 2 in two bits, four in
    a byte, lowest bits first; rows are padded with zero trits to a multiple of ``block`` columns. This is the layout of
    MatMulNBits.

    With ``tied``, the scale of a plane is 3 times that of the next one, and only the scales of the last plane are stored,
    so that a weight is the last plane's scale times one integer: 3 t1 + t2, or 9 t1 + 3 t2 + t3.
    """

    kind: ClassVar[str] = "ternary"
    planes: int = 1
    group_size: int = 0
    tied: bool = False

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
            "scale": StoredPart(dtype=np.dtype(np.float32), shape=scales),
        }

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
        _finite(name, "scale", arrays["scale"])
        return TernaryWeight(
            trits=self.unpack(name, arrays["codes"], shape[1]),
            scale=arrays["scale"],
            group_size=self.group_size,
            tied=self.tied,
        )


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
            _finite(name, "scale", arrays["scale"])
            return Int4Weight(codes=codes.view(np.int8) - np.int8(8), scale=arrays["scale"].astype(np.float32))
        _finite(name, "factors", arrays["factors"])
        if arrays["steps"].max(initial=0) > 63:
            raise BundleError(f"tensor {name}: its steps are not in 0..63; quantize the checkpoint again")
        scale, minimum = np.moveaxis(self.scales(arrays["factors"], arrays["steps"]), -1, 0)
        return Int4Weight(codes=codes.view(np.int8), scale=scale, minimum=minimum)

    def scales(self, factors: NDArray[np.float16], steps: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return scale and minimum of each group, float32 [out, groups, 2]."""
        spread = np.repeat(factors.astype(np.float32), self.SHARED, axis=1)[:, : steps.shape[1]]
        product: NDArray[np.float32] = spread * steps
        return product


Scheme = FloatScheme | Int8Scheme | TernaryScheme | Int4Scheme


@dataclass(frozen=True, kw_only=True)
class FloatWeight:
    """A weight stored as floats."""

    values: Array

    def dense(self) -> NDArray[np.float32]:
        return self.values.astype(np.float32, copy=False)

    def rows(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        return self.values[ids].astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Int8Weight:
    """A weight stored as int8 codes with one scale per output row."""

    codes: NDArray[np.int8]  # [out, in]
    scale: NDArray[np.float32]  # [out]

    def dense(self) -> NDArray[np.float32]:
        return self.codes.astype(np.float32) * self.scale[:, None]

    def rows(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        return self.codes[ids].astype(np.float32) * self.scale[ids, None]


def fold(trits: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return the integers int8 [...] whose digits are the trits [planes, ...]: 3 t1 + t2, or 9 t1 + 3 t2 + t3."""
    total: NDArray[np.int8] = trits[0]
    for plane in trits[1:]:
        total = total * np.int8(3) + plane
    return total


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

    def dense(self) -> NDArray[np.float32]:
        if self.tied:
            spread = np.repeat(self.scale[0], self.group_size, axis=1)[:, : self.trits.shape[2]]
            folded: NDArray[np.float32] = fold(self.trits) * spread
            return folded
        dense: NDArray[np.float32] = (self.trits * self.column_scales()).sum(axis=0, dtype=np.float32)
        return dense


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


Weight = FloatWeight | Int8Weight | TernaryWeight | Int4Weight


def scheme_features(scheme: Scheme) -> set[str]:
    """Return the names of the features (``requires`` of a manifest) without which a reader cannot use the scheme."""
    if isinstance(scheme, Int4Scheme):
        return {"int4"}
    return {"tied_planes"} if isinstance(scheme, TernaryScheme) and scheme.tied else set()


def scheme_to_json(scheme: Scheme) -> dict[str, Any]:
    """Return the manifest entry of a scheme. ``tied`` is written if it is true only, because older readers refuse it."""
    return {"kind": scheme.kind, **{key: value for key, value in asdict(scheme).items() if key != "tied" or value}}


def scheme_from_json(name: str, data: Any) -> Scheme:
    """Return the scheme of a manifest entry, e.g. ``{"kind": "ternary", "planes": 2, "group_size": 64}``.

    Raises:
        BundleError: a kind or a key is unknown, or a value is out of range; the message names the tensor.
    """
    kinds: dict[str, type[Scheme]] = {cls.kind: cls for cls in (FloatScheme, Int8Scheme, TernaryScheme, Int4Scheme)}
    if not isinstance(data, dict) or data.get("kind") not in tuple(kinds):
        raise BundleError(f"tensor {name}: scheme must be one of {', '.join(kinds)}, not {reprlib.repr(data)}")
    fields = {key: value for key, value in data.items() if key != "kind"}
    try:
        return kinds[data["kind"]](**fields)
    except (TypeError, BundleError) as error:
        raise BundleError(f"tensor {name}: {error}") from None
