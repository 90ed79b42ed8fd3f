"""Read one safetensors file strictly.

Layout: uint64 header length, that many bytes of JSON ({name: {dtype, shape, data_offsets}}), then the tensors, which
must fill the rest of the file without holes or overlaps. Source: the format section of the safetensors README.

The whole header is checked before any tensor is read, so that an invalid header causes an error and no allocation.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.checkpoint import TensorInfo
from edgedec.quantize.readers.untrusted import file_bytes, parse_object, read_array, read_bytes, shown

__all__ = ["StoredTensor", "TensorEntry", "load_bytes", "load_entry", "read_entries", "same_values"]

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_MAX_RANK = 8
_COMPARED_BYTES = 8 << 20  # bytes of a tensor that are compared at once
_NAME = re.compile(r"\w+([.-]\w+)*", re.ASCII)  # excludes names that form a path
_READ = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
_LOADED = {dtype.name: dtype for dtype in _READ.values()}
_BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """Place of one tensor: ``nbytes`` bytes from ``offset``, counted from the start of the file ``path``."""

    path: Path
    offset: int
    nbytes: int
    info: TensorInfo


def read_entries(path: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a safetensors file by name.

    Raises:
        BundleError: the file is truncated, or its header contradicts itself or the file.
        UnsupportedError: a tensor has an unknown type, which a newer version of the format may have added.
    """
    size = file_bytes(path)
    if size < 8:
        raise BundleError(f"{path}: {size} bytes are too few for a safetensors file")
    length = int.from_bytes(read_bytes(path, offset=0, count=8, what="the header length"), "little")
    if length > min(size - 8, _MAX_HEADER_BYTES):
        raise BundleError(
            f"{path}: the header claims {length} bytes, but the file has {size} and the limit is {_MAX_HEADER_BYTES}"
        )
    try:
        text = read_bytes(path, offset=8, count=length, what="the header").decode("utf-8")
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}: the header is not UTF-8 at byte {error.start}") from None
    header = parse_object(text, f"{path}: the header")
    header.pop("__metadata__", None)
    start = 8 + length
    entries = {name: _entry(path, name, fields, start) for name, fields in header.items()}
    _check_filled(path, entries, start, size)
    return entries


def _entry(path: Path, name: str, fields: object, start: int) -> TensorEntry:
    where = f"{path}: tensor {shown(name)}"
    if len(name) > 512 or not _NAME.fullmatch(name):
        raise BundleError(f"{where}: a name must be letters, digits and underscores joined by single dots or hyphens")
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise BundleError(f"{where}: must have exactly dtype, shape and data_offsets, not {shown(fields)}")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str):
        raise BundleError(f"{where}: dtype must be a string, not {shown(dtype)}")
    if dtype not in _BITS:
        raise UnsupportedError(f"{where}: dtype {shown(dtype)} is unknown; F32, F16 and BF16 are read")
    if not _are_ints(shape, 1) or len(shape) > _MAX_RANK:
        raise BundleError(f"{where}: shape must be at most {_MAX_RANK} positive integers, not {shown(shape)}")
    if not _are_ints(offsets, 0) or len(offsets) != 2 or offsets[1] < offsets[0]:
        raise BundleError(f"{where}: data_offsets must be [begin, end], not {shown(offsets)}")
    nbytes = offsets[1] - offsets[0]
    if math.prod(shape) * _BITS[dtype] != nbytes * 8:
        raise BundleError(f"{where}: shape {shown(shape)} of {dtype} does not take the {nbytes} bytes of data_offsets")
    known = _READ.get(dtype)
    info = TensorInfo(shape=tuple(shape), dtype=known.name if known else dtype)
    return TensorEntry(path=path, offset=start + offsets[0], nbytes=nbytes, info=info)


def _are_ints(value: Any, least: int) -> bool:
    """Return whether a JSON value is a list of integers in [least, 2^63). True and False do not count as integers."""
    return isinstance(value, list) and all(type(item) is int and least <= item < 1 << 63 for item in value)


def _check_filled(path: Path, entries: dict[str, TensorEntry], start: int, size: int) -> None:
    """Check that the tensors follow each other from ``start`` to the end of the file, and that each byte belongs to one."""
    at = start
    for name, entry in sorted(entries.items(), key=lambda item: item[1].offset):
        if entry.offset + entry.nbytes > size:
            raise BundleError(
                f"{path}: tensor {shown(name)} ends at byte {entry.offset + entry.nbytes}, but the file ends at {size}; "
                "it is truncated or damaged"
            )
        if entry.offset != at:
            problem = "overlaps the tensor before it" if entry.offset < at else "leaves a hole before it"
            raise BundleError(f"{path}: tensor {shown(name)} {problem} (it begins at {entry.offset}, not {at})")
        at += entry.nbytes
    if at != size:
        raise BundleError(f"{path}: {size - at} bytes after the last tensor belong to no tensor")


def _float_type(name: str, entry: TensorEntry) -> np.dtype[Any]:
    dtype: np.dtype[Any] | None = _LOADED.get(entry.info.dtype)
    if dtype is None:
        raise UnsupportedError(
            f"{entry.path}: tensor {name!r} is {entry.info.dtype}; save the model as F32, F16 or BF16, which are read"
        )
    return dtype


def load_entry(name: str, entry: TensorEntry) -> NDArray[Any]:
    """Read one tensor.

    Raises:
        BundleError: the file has shrunk since its header was read.
        UnsupportedError: the type is not F32, F16 or BF16.
    """
    return _load(name, entry, _float_type(name, entry))


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor in its file: a call reads all of it, a slice reads some rows. Both raise the errors of ``load_entry``."""

    name: str
    entry: TensorEntry

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.info.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return _float_type(self.name, self.entry)

    def __call__(self) -> NDArray[Any]:
        return load_entry(self.name, self.entry)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, step = rows.indices(self.shape[0])
        assert step == 1
        row_bytes = self.entry.nbytes // self.shape[0]
        info = replace(self.entry.info, shape=(stop - start, *self.shape[1:]))
        part = replace(
            self.entry, offset=self.entry.offset + start * row_bytes, nbytes=(stop - start) * row_bytes, info=info
        )
        return load_entry(self.name, part)


def same_values(one: TensorEntry, other: TensorEntry) -> bool:
    """Return whether two tensors have the same shape and values, whatever float types they are stored in.

    Raises:
        BundleError: a file has shrunk since its header was read.
    """
    if one.info.shape != other.info.shape or not {one.info.dtype, other.info.dtype} <= _LOADED.keys():
        return False
    rows = max(1, _COMPARED_BYTES * one.info.shape[0] // max(one.nbytes, 1))
    first, second = StoredTensor(name="one", entry=one), StoredTensor(name="other", entry=other)
    return all(
        np.array_equal(first[at : at + rows].astype(np.float32), second[at : at + rows].astype(np.float32))
        for at in range(0, one.info.shape[0], rows)
    )


def load_bytes(name: str, entry: TensorEntry) -> NDArray[np.uint8]:
    """Read one tensor of type U8, which only packed formats hold.

    Raises:
        BundleError: the file has shrunk since its header was read.
    """
    assert entry.info.dtype == "U8"
    return _load(name, entry, np.dtype(np.uint8))


def _load(name: str, entry: TensorEntry, dtype: np.dtype[Any]) -> NDArray[Any]:
    count = entry.nbytes // dtype.itemsize
    flat = read_array(entry.path, offset=entry.offset, count=count, dtype=dtype, what=f"tensor {name!r}")
    return flat.reshape(entry.info.shape)
