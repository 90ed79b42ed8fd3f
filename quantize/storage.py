"""The ways in which the methods of quantization store the tensors of a checkpoint: one object for each.

A model that has ternary weights or codes is rounded only where necessary: an embedding of another type stays as it is, and
matrices of another type, as the head may be, become int8.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from edgedec.quantize.options import QuantizeOptions
from edgedec.quantize.readers.checkpoint import Checkpoint, TensorInfo
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme, TernaryScheme

__all__ = ["MatrixScheme", "Role", "Storage", "storage_of"]

# A matrix of a layer, one that steers a recurrence, the embedding, or the head.
Role = Literal["inside", "steering", "embedding", "head"]
MatrixScheme = Int4Scheme | Int8Scheme | TernaryScheme
_INT8 = Int8Scheme(rows=True)
_TWO_BIT_PLANES = 2  # planes that hold any 2-bit code


class Storage(ABC):
    """The way in which a method stores matrices.

    Members:
        native: True if the model's own trits or codes are taken without loss.
        fitted: True if codes are fitted to the matrices of layers.
    """

    native = fitted = False

    @abstractmethod
    def scheme(self, role: Role, info: TensorInfo) -> MatrixScheme | None:
        """Return the scheme of a matrix; None if it keeps its floats."""

    def otherwise(self, role: Role) -> Int8Scheme | FloatScheme | None:
        """Return the scheme of a matrix that turns out not to be ternary; None: it is an error."""
        return None


@dataclass(frozen=True)
class _Uniform(Storage):
    """All matrices have one scheme, or keep their floats."""

    every: Int8Scheme | None

    def scheme(self, role: Role, info: TensorInfo) -> Int8Scheme | None:
        return self.every


class _Ternary(Storage):
    """The matrices are ternary already."""

    native = True

    def scheme(self, role: Role, info: TensorInfo) -> TernaryScheme:
        return TernaryScheme()

    def otherwise(self, role: Role) -> Int8Scheme | FloatScheme | None:
        return {"inside": None, "head": _INT8}.get(role, FloatScheme())


class _Int4Codes(Storage):
    """The file has codes of 4 bits."""

    native = True

    def scheme(self, role: Role, info: TensorInfo) -> MatrixScheme | None:
        return None if role == "embedding" else info.int4 or _INT8


@dataclass(frozen=True)
class _TwoBitCodes(Storage):
    """The file has codes of 2 bits, which ``planes`` hold."""

    planes: TernaryScheme
    native = True

    def scheme(self, role: Role, info: TensorInfo) -> MatrixScheme | None:
        if info.two_bit:
            return self.planes
        return None if role == "embedding" else _INT8


@dataclass(frozen=True)
class _Fitted(Storage):
    """Codes of ``codes`` are fitted to the matrices of layers; the others are int8."""

    codes: Int4Scheme | TernaryScheme
    fitted = True

    def scheme(self, role: Role, info: TensorInfo) -> MatrixScheme:
        return self.codes if role in ("inside", "steering") else _INT8


def storage_of(checkpoint: Checkpoint, options: QuantizeOptions) -> Storage:
    """Return the way in which a checkpoint is stored with these options."""
    codes = options.fitted_scheme
    if codes is None:
        return _Ternary() if options.method == "ternary" else _Uniform(_INT8 if options.method == "int8" else None)
    layers = [info for name, info in checkpoint.tensors.items() if ".layers." in name]
    if isinstance(codes, Int4Scheme):
        return _Int4Codes() if any(info.int4 for info in layers) else _Fitted(codes)
    has_codes = codes.planes == _TWO_BIT_PLANES and any(info.two_bit for info in layers)
    return _TwoBitCodes(codes) if has_codes else _Fitted(codes)
