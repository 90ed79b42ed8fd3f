"""The ways in which the methods of quantization store the matrices of a checkpoint: one object for each.

A model that has ternary weights or codes is rounded only where necessary: an embedding of another type stays as it is, and
matrices of another type, as the head may be, become int8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from edgedec.quantize.options import QuantizeOptions
from edgedec.quantize.readers.checkpoint import Checkpoint, TensorInfo
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme, TernaryScheme

__all__ = ["MatrixScheme", "Role", "Storage", "storage_of"]

# A matrix of a layer, one that steers a recurrence, the embedding, or the head.
Role = Literal["inside", "steering", "embedding", "head"]
MatrixScheme = Int4Scheme | Int8Scheme | TernaryScheme
_INT8, _TWO_BIT_PLANES = Int8Scheme(rows=True), 2  # these planes hold any 2-bit code


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The way in which a method stores matrices.

    Members:
        scheme: returns the scheme of a matrix; None: it keeps its floats.
        native: True if the model's own trits or codes are taken without loss.
        fitted: True if codes are fitted to the matrices of layers.
        otherwise: schemes of matrices that turn out not to be ternary; without one that is an error.
    """

    scheme: Callable[[Role, TensorInfo], MatrixScheme | None]
    native: bool = False
    fitted: bool = False
    otherwise: Mapping[Role, Int8Scheme | FloatScheme] = field(default_factory=dict)


_FLOATS = Storage(scheme=lambda role, info: None)
_ROUNDED = Storage(scheme=lambda role, info: _INT8)
_TERNARY = Storage(
    native=True,
    scheme=lambda role, info: TernaryScheme(),
    otherwise={"head": _INT8, "embedding": FloatScheme(), "steering": FloatScheme()},
)
_INT4_CODES = Storage(native=True, scheme=lambda role, info: None if role == "embedding" else info.int4 or _INT8)


def storage_of(checkpoint: Checkpoint, options: QuantizeOptions) -> Storage:
    """Return the way in which a checkpoint is stored with these options."""
    codes = options.fitted_scheme
    if codes is None:
        return {"float": _FLOATS, "int8": _ROUNDED, "ternary": _TERNARY}[options.method]
    layers = [info for name, info in checkpoint.tensors.items() if ".layers." in name]
    if isinstance(codes, Int4Scheme):
        if any(info.int4 for info in layers):
            return _INT4_CODES
    elif codes.planes == _TWO_BIT_PLANES and any(info.two_bit for info in layers):
        rest = {"embedding": None}  # matrices without codes, by role; others become int8
        return Storage(native=True, scheme=lambda role, info: codes if info.two_bit else rest.get(role, _INT8))
    return Storage(fitted=True, scheme=lambda role, info: codes if role in ("inside", "steering") else _INT8)
