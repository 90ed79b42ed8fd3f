"""The forms of matrices on a GPU: for each scheme its kernel, its packing and its sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.gpu.kernels.linear import OUTS, Packed, tiles
from edgedec.runtime.gpu.kernels.linear_float import linear_float, pack_float
from edgedec.runtime.gpu.kernels.linear_grid import linear_grid, pack_grid
from edgedec.runtime.gpu.kernels.linear_int8 import linear_int8, pack_int8
from edgedec.runtime.gpu.kernels.linear_ternary import linear_ternary, pack_ternary
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme, Scheme, TernaryScheme

__all__ = ["MatrixForm", "form_of"]

Parts = Mapping[str, NDArray[Any]]


class MatrixForm(Protocol):
    """A form of matrices. Two are equal if matrices can be stacked.

    Members:
        parts: names of the stored parts that packing needs.
        reads_floats: True if the product reads floats in columns of any matrix, not codes and their scales.
    """

    @property
    def parts(self) -> tuple[str, ...]: ...

    @property
    def reads_floats(self) -> bool: ...

    def words(self, outputs: int, inputs: int) -> int:
        """Return the words of the packed codes."""

    def scale_words(self, outputs: int, inputs: int) -> int:
        """Return the words of the packed scales; 0: they are among the codes."""

    def row_bytes(self, inputs: int) -> int:
        """Return the bytes of an output in the larger of the two."""

    def rows(self, parts: Parts, start: int, stop: int) -> Parts:
        """Return rows [start, stop) of the stored parts."""

    def pack(self, inputs: int, matrices: Sequence[Parts]) -> Packed:
        """Return stacked matrices in the kernel's layout."""

    def build(self, options: Any, **sizes: Any) -> Kernel:
        """Return the kernel."""


def _whole(count: int, step: int) -> int:
    return -(-count // step)


@dataclass(frozen=True)
class _Int8:
    scheme: Int8Scheme
    parts = ("codes", "scale")
    reads_floats = False

    def words(self, outputs: int, inputs: int) -> int:
        return tiles(outputs) * OUTS * _whole(inputs, 16) * 4

    def scale_words(self, outputs: int, inputs: int) -> int:
        return tiles(outputs) * OUTS

    def row_bytes(self, inputs: int) -> int:
        return 16 * _whole(inputs, 16)

    def rows(self, parts: Parts, start: int, stop: int) -> Parts:
        codes = parts["codes"][start:stop] if self.scheme.rows else parts["codes"][:, start:stop]
        return {"codes": codes, "scale": parts["scale"][start:stop]}

    def pack(self, inputs: int, matrices: Sequence[Parts]) -> Packed:
        return pack_int8(self.scheme, [(parts["codes"], parts["scale"]) for parts in matrices])

    def build(self, options: Any, **sizes: Any) -> Kernel:
        return linear_int8(options, **sizes)


@dataclass(frozen=True)
class _Ternary:
    scheme: TernaryScheme
    parts = ("codes", "scale")
    reads_floats = False

    def words(self, outputs: int, inputs: int) -> int:
        return tiles(outputs) * OUTS * self.scheme.planes * _whole(inputs, 64) * 4

    def scale_words(self, outputs: int, inputs: int) -> int:
        return tiles(outputs) * OUTS * self.scheme.planes * self.scheme.groups(inputs)

    def row_bytes(self, inputs: int) -> int:
        return self.scheme.planes * max(16 * _whole(inputs, 64), 4 * self.scheme.groups(inputs))

    def rows(self, parts: Parts, start: int, stop: int) -> Parts:
        scale = parts["scale"][:, start:stop] if self.scheme.group_size else parts["scale"]
        return {"codes": parts["codes"][:, start:stop], "scale": scale}

    def pack(self, inputs: int, matrices: Sequence[Parts]) -> Packed:
        return pack_ternary(self.scheme, inputs, [(parts["codes"], parts["scale"]) for parts in matrices])

    def build(self, options: Any, **sizes: Any) -> Kernel:
        kind = partial(linear_ternary, planes=self.scheme.planes, group_size=self.scheme.group_size)
        return kind(options, **sizes)


@dataclass(frozen=True)
class _Grid:
    scheme: Int4Scheme | TernaryScheme
    reads_floats = False

    @property
    def parts(self) -> tuple[str, ...]:
        if isinstance(self.scheme, Int4Scheme) and self.scheme.offset:
            return ("codes", "factors", "steps")
        return ("codes", "scale")

    @property
    def _has_high_bits(self) -> bool:
        """True if codes have five bits."""
        return isinstance(self.scheme, TernaryScheme) and self.scheme.planes == 3

    def _code_words(self, inputs: int) -> int:
        blocks = _whole(inputs, 32)
        return 4 * (blocks + (_whole(blocks, 4) if self._has_high_bits else 0))

    def _scale_words(self, inputs: int) -> int:
        groups = self.scheme.groups(inputs)
        if isinstance(self.scheme, TernaryScheme):
            return groups
        return _whole(groups, 2) + (_whole(groups, 8) if self.scheme.offset else 0)

    def words(self, outputs: int, inputs: int) -> int:
        return tiles(outputs) * OUTS * self._code_words(inputs)

    def scale_words(self, outputs: int, inputs: int) -> int:
        return tiles(outputs) * OUTS * self._scale_words(inputs)

    def row_bytes(self, inputs: int) -> int:
        return 4 * max(self._code_words(inputs), self._scale_words(inputs))

    def rows(self, parts: Parts, start: int, stop: int) -> Parts:
        if isinstance(self.scheme, TernaryScheme):  # the first axis is that of the planes
            return {name: part[:, start:stop] for name, part in parts.items()}
        return {name: part[start:stop] for name, part in parts.items()}

    def pack(self, inputs: int, matrices: Sequence[Parts]) -> Packed:
        return pack_grid(self.scheme, inputs, matrices)

    def build(self, options: Any, **sizes: Any) -> Kernel:
        return linear_grid(options, scheme=self.scheme, **sizes)


@dataclass(frozen=True)
class _Float:
    scheme: FloatScheme
    parts = ("values",)
    reads_floats = True

    def words(self, outputs: int, inputs: int) -> int:
        return tiles(outputs) * OUTS * self.row_bytes(inputs) // 4

    def scale_words(self, outputs: int, inputs: int) -> int:
        return 0

    def row_bytes(self, inputs: int) -> int:
        return 16 * _whole(inputs * self.scheme.parts((1, 1))["values"].dtype.itemsize, 16)

    def rows(self, parts: Parts, start: int, stop: int) -> Parts:
        return {"values": parts["values"][start:stop]}

    def pack(self, inputs: int, matrices: Sequence[Parts]) -> Packed:
        words = pack_float([parts["values"] for parts in matrices])
        return Packed(weights=words, scales=np.empty(0, np.uint32))

    def build(self, options: Any, **sizes: Any) -> Kernel:
        return linear_float(options, scheme=self.scheme, **sizes)


def form_of(scheme: Scheme) -> MatrixForm:
    """Return the form of a matrix."""
    if isinstance(scheme, Int8Scheme):
        return _Int8(scheme)
    if isinstance(scheme, TernaryScheme) and not scheme.tied:
        return _Ternary(scheme)
    return _Float(scheme) if isinstance(scheme, FloatScheme) else _Grid(scheme)
