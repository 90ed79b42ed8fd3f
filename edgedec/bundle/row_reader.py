"""Look up rows of a matrix of a bundle, as an embedding does, without mapping it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.manifest import Tensor
from edgedec.schemes import FloatScheme, TernaryScheme

__all__ = ["RowReader", "StoredRows"]


class StoredRows(NamedTuple):
    """The place of a matrix that is stored by rows.

    Members:
        file: file descriptor, which stays open as long as the reader.
        offset: position of the first row in the file, in bytes.
        dtype: type of the stored numbers: int8, uint8 of ternary codes, or a float.
        scales: float32, a factor of each row of int8 codes, or the one of a ternary matrix without groups; None: there are
            none, or they are in the file.
        ternary: scheme of a ternary matrix.
        scales_offset: position of a ternary matrix's scales in the file, in bytes.
    """

    file: int
    offset: int
    dtype: np.dtype[Any]
    scales: NDArray[np.float32] | None
    ternary: TernaryScheme | None
    scales_offset: int


class RowReader:
    """Look up rows of a stored matrix [rows, width] without mapping it.

    A mapped table would be charged for many more rows than are read, because the system also maps neighbouring pages.
    """

    def __init__(self, file: Path, tensor: Tensor, scale: NDArray[np.float32] | None) -> None:
        """Open the file.

        Args:
            file: file with the arrays of the bundle.
            tensor: place and scheme of the matrix: float, int8 by rows, or ternary.
            scale: scales, as in ``StoredRows``.
        """
        self._file = file.open("rb", buffering=0)
        self._tensor, self._scale = tensor, scale
        self._part = "values" if isinstance(tensor.scheme, FloatScheme) else "codes"
        self._dtype = tensor.scheme.parts(tensor.shape)[self._part].dtype

    def stored_rows(self) -> StoredRows:
        """Return the place of the rows."""
        scheme, offsets = self._tensor.scheme, self._tensor.offsets
        ternary = scheme if isinstance(scheme, TernaryScheme) else None
        return StoredRows(
            file=self._file.fileno(),
            offset=offsets[self._part],
            dtype=self._dtype,
            scales=self._scale,
            ternary=ternary,
            scales_offset=offsets["scale"] if ternary else 0,
        )

    def rows(self, ids: NDArray[np.int32], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return the rows of ids int32 [n], none negative, as float32 [n, width], in ``out`` if it is given."""
        width = self._tensor.shape[1]
        if out is None:
            out = np.empty((len(ids), width), np.float32)
        if isinstance(self._tensor.scheme, TernaryScheme) and len(ids):
            out[...] = self._ternary(self._tensor.scheme, ids)
            return out
        for row, token in zip(out, ids.tolist(), strict=True):
            stored = self._read(self._part, token, (width,))
            if self._scale is None:
                row[...] = stored
            else:
                np.multiply(stored, self._scale[token], out=row)
        return out

    def _read(self, part: str, row: int, shape: tuple[int, ...]) -> NDArray[Any]:
        """Read row ``row`` of a part whose rows have this shape; rows of later planes follow those of the first one."""
        dtype = self._tensor.scheme.parts(self._tensor.shape)[part].dtype
        nbytes = dtype.itemsize * int(np.prod(shape))
        data = os.pread(self._file.fileno(), nbytes, self._tensor.offsets[part] + row * nbytes)
        return np.frombuffer(data, dtype).reshape(shape)

    def _ternary(self, scheme: TernaryScheme, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """Open the rows as a smaller matrix of the same scheme."""
        parts = scheme.parts(self._tensor.shape)
        arrays = {} if self._scale is None else {"scale": self._scale}
        for part in parts.keys() - arrays.keys():
            planes, rows, *row_shape = parts[part].shape
            arrays[part] = np.stack(
                [
                    [self._read(part, plane * rows + token, tuple(row_shape)) for token in ids.tolist()]
                    for plane in range(planes)
                ]
            )
        shape = (len(ids), self._tensor.shape[1])
        with_parts = {part: arrays[part].reshape(spec.shape) for part, spec in scheme.parts(shape).items()}
        return scheme.open("embedding", shape, with_parts).dense()
