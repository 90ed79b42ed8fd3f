"""Read the header of a GGUF file strictly: its metadata, and the place of each tensor.

Layout, little-endian: "GGUF", uint32 version, uint64 tensors, uint64 metadata entries; per entry a string (uint64 length,
UTF-8), uint32 type and the value; per tensor its name, uint32 dimensions, their sizes from the innermost outwards, uint32
type and uint64 offset from the first aligned byte after the header. Source: docs/gguf.md of ggml.

The whole header is checked before any tensor is read. The reader of the ``gguf`` package is not used for untrusted files,
because it trusts the counts in a header; tests compare the two readers on valid files.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.gguf.blocks import KINDS, Q2_0_LAYOUTS, Kind
from edgedec.quantize.readers.untrusted import file_bytes, shown

__all__ = ["GgufHeader", "GgufTensor", "Value", "read_header"]

Value = bool | int | float | str | list[str] | NDArray[Any]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
# The largest vocabularies in use have 262,144 tokens, and their headers 15 MB.
_MAX_HEADER_BYTES = 256 << 20
_MAX_STRINGS = 1 << 21
_MAX_ENTRIES, _MAX_TENSORS = 1 << 14, 1 << 17
_MAX_KEY_BYTES, _MAX_NAME_BYTES, _MAX_DIMENSIONS = 512, 256, 4
_MAX_ALIGNMENT = 1 << 20
_NAME = re.compile(r"\w+([.-]\w+)*", re.ASCII)  # excludes names that form a path
_KEY = re.compile(r"[\w.<>|/ -]+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """A tensor of a file. ``shape`` begins with the outermost dimension; ``offset`` is in bytes from the file's start."""

    path: Path
    name: str
    shape: tuple[int, ...]
    kind: Kind
    offset: int

    @property
    def nbytes(self) -> int:
        return self.kind.nbytes(self.shape)


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """Metadata and tensors of a model. Arrays in the metadata are lists of strings or arrays of numbers."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, GgufTensor]


class _Cursor:
    """Reads a file from front to back, never past its end or past the limit on the size of a header."""

    def __init__(self, path: Path, file: IO[bytes], size: int) -> None:
        self.path, self.at, self._file, self._size = path, 0, file, size

    def take(self, count: int, what: str) -> bytes:
        """Read ``count`` bytes, after checking that the file has as many."""
        if count > self._size - self.at:
            raise BundleError(
                f"{self.path}: {what}: {shown(count)} bytes are needed from byte {self.at} on, "
                f"but the file ends at {self._size}; it is truncated or damaged"
            )
        if self.at + count > _MAX_HEADER_BYTES:
            raise BundleError(f"{self.path}: {what}: a header of more than {_MAX_HEADER_BYTES} bytes is not read")
        data = self._file.read(count)
        if len(data) != count:
            raise BundleError(f"{self.path}: {what} ends after {len(data)} of {count} bytes; the file is truncated")
        self.at += count
        return data

    def number(self, kind: int, what: str) -> Any:
        dtype = _NUMBERS[kind]
        value = np.frombuffer(self.take(dtype.itemsize, what), dtype)[0].item()
        return self._truth(value, what) if kind == _BOOL else value

    def text(self, what: str, limit: int = _MAX_HEADER_BYTES) -> str:
        (length,) = struct.unpack("<Q", self.take(8, what))
        if length > limit:
            raise BundleError(f"{self.path}: {what} claims {length} bytes; at most {limit} are read")
        data = self.take(length, what)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BundleError(f"{self.path}: {what} is not UTF-8 at byte {error.start}: {shown(data)}") from None

    def value(self, what: str) -> Value:
        kind = self.number(4, what)
        if kind == _STRING:
            return self.text(what)
        if kind == _ARRAY:
            return self._array(what)
        if kind not in _NUMBERS:
            raise BundleError(f"{self.path}: {what} has the type {kind}, which GGUF does not have")
        return self.number(kind, what)  # type: ignore[no-any-return]

    def _array(self, what: str) -> Value:
        kind, count = struct.unpack("<IQ", self.take(12, what))
        if kind == _STRING:
            if count > _MAX_STRINGS:
                raise BundleError(f"{self.path}: {what} claims {count} strings; at most {_MAX_STRINGS} are read")
            if 8 * count > self._size - self.at:
                raise BundleError(f"{self.path}: {what} claims {count} strings, more than the file has room for")
            return [self.text(f"{what}[{at}]") for at in range(count)]
        if kind == _ARRAY:
            raise UnsupportedError(f"{self.path}: {what} is an array of arrays, which no model needs")
        if kind not in _NUMBERS:
            raise BundleError(f"{self.path}: {what} is an array of the type {kind}, which GGUF does not have")
        values = np.frombuffer(self.take(count * _NUMBERS[kind].itemsize, what), _NUMBERS[kind])
        if kind == _BOOL and (values > 1).any():
            raise BundleError(f"{self.path}: {what} holds a truth value that is neither 0 nor 1")
        return values

    def _truth(self, value: int, what: str) -> bool:
        if value not in (0, 1):
            raise BundleError(f"{self.path}: {what} must be 0 or 1, not {value}")
        return bool(value)


def read_header(path: Path) -> GgufHeader:
    """Read metadata and tensors of one GGUF file. The file may be a part of a model; ``parts`` joins the parts.

    Raises:
        BundleError: the file is truncated, or its header contradicts itself or the file; the message names the entry.
        UnsupportedError: the file is big-endian or of another version, or has an unknown type of tensor.
    """
    size = file_bytes(path)
    try:
        with path.open("rb") as file:
            cursor = _Cursor(path, file, size)
            metadata, tensors = _read(cursor)
    except OSError as error:
        raise BundleError(f"{path}: the header cannot be read: {error.strerror}") from None
    return GgufHeader(path=path, metadata=metadata, tensors=_placed(path, metadata, tensors, cursor.at, size))


def _read(cursor: _Cursor) -> tuple[dict[str, Value], list[tuple[str, tuple[int, ...], Kind, int]]]:
    path = cursor.path
    if cursor.take(4, "the magic") != _MAGIC:
        raise BundleError(f"{path} does not begin with GGUF")
    (version,) = struct.unpack("<I", cursor.take(4, "the version"))
    if version not in _VERSIONS:
        if version and not version & 0xFFFF:
            raise UnsupportedError(f"{path} is big-endian; convert it on a little-endian machine")
        raise UnsupportedError(
            f"{path}: version {version} of GGUF is not read; known: 2 and 3; convert the model again"
        )
    tensors, entries = struct.unpack("<QQ", cursor.take(16, "the counts"))
    for what, count, limit in (("tensors", tensors, _MAX_TENSORS), ("metadata entries", entries, _MAX_ENTRIES)):
        if count > limit:
            raise BundleError(f"{path} claims {count} {what}; at most {limit} are read")
    metadata: dict[str, Value] = {}
    for at in range(entries):
        key = cursor.text(f"the key of metadata entry {at}", _MAX_KEY_BYTES)
        if not _KEY.fullmatch(key):
            raise BundleError(f"{path}: metadata entry {at} has an impossible key, {shown(key)}")
        if key in metadata:
            raise BundleError(f"{path}: the metadata key {key!r} appears twice")
        metadata[key] = cursor.value(f"metadata {key!r}")
    return metadata, [_tensor(cursor, at) for at in range(tensors)]


def _tensor(cursor: _Cursor, at: int) -> tuple[str, tuple[int, ...], Kind, int]:
    path = cursor.path
    name = cursor.text(f"the name of tensor {at}", _MAX_NAME_BYTES)
    if not _NAME.fullmatch(name):
        raise BundleError(
            f"{path}: tensor {shown(name)}: a name must be letters, digits and underscores joined by dots or hyphens"
        )
    where = f"tensor {name!r}"
    (dimensions,) = struct.unpack("<I", cursor.take(4, where))
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise BundleError(f"{path}: {where} has {dimensions} dimensions; it must have 1 to {_MAX_DIMENSIONS}")
    *sizes, number, offset = struct.unpack(f"<{dimensions}QIQ", cursor.take(8 * dimensions + 12, where))
    if not all(1 <= size < 1 << 40 for size in sizes):
        raise BundleError(f"{path}: {where} has the impossible shape {shown(sizes[::-1])}")
    kind = KINDS.get(number)
    if kind is None:
        raise UnsupportedError(f"{path}: {where} has GGML's type {number}, which is not known; save it as F16 or Q8_0")
    if sizes[0] % kind.block:  # Q2_0's block is the smaller of its two
        raise BundleError(
            f"{path}: {where} has rows of {sizes[0]}, not a multiple of {kind.name}'s block of {kind.block}"
        )
    return name, tuple(sizes[::-1]), kind, offset


def _placed(
    path: Path,
    metadata: dict[str, Value],
    tensors: list[tuple[str, tuple[int, ...], Kind, int]],
    end: int,
    size: int,
) -> dict[str, GgufTensor]:
    """Return the tensors with their places, after checking that they are aligned, inside the file and without holes."""
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 8 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise BundleError(f"{path}: general.alignment must be a power of two from 8, not {shown(alignment)}")
    start = -(-end // alignment) * alignment
    placed: dict[str, GgufTensor] = {}
    expected = 0
    tensors = sorted(tensors, key=lambda tensor: tensor[3])
    for name, shape, kind, offset in _with_q2_0(path, tensors, alignment, size - start):
        where = f"{path}: tensor {name!r}"
        if name in placed:
            raise BundleError(f"{where} appears twice")
        if offset != expected:
            problem = "overlaps the tensor before it" if offset < expected else "leaves a hole before it"
            raise BundleError(f"{where} {problem} (it begins at {offset} after the header, not {expected})")
        nbytes = kind.nbytes(shape)
        if start + offset + nbytes > size:
            raise BundleError(
                f"{where} of shape {shape} ends at byte {start + offset + nbytes}, but the file ends at {size}; "
                "it is truncated or damaged"
            )
        placed[name] = GgufTensor(path=path, name=name, shape=shape, kind=kind, offset=start + offset)
        expected += math.ceil(nbytes / alignment) * alignment
    return placed


def _with_q2_0(
    path: Path, tensors: list[tuple[str, tuple[int, ...], Kind, int]], alignment: int, room: int
) -> list[tuple[str, tuple[int, ...], Kind, int]]:
    """Return the tensors, in the order of their offsets, with the blocks of Q2_0 that the places of the tensors imply.

    All tensors of the number 42 have the same blocks. ``room`` is the number of bytes after the header.

    Raises:
        UnsupportedError: neither form of the blocks explains the places, or both do.
    """
    offsets = [*(offset for _, _, _, offset in tensors), -(-room // alignment) * alignment]
    places = [
        (name, shape, offsets[at + 1] - offset)
        for at, (name, shape, kind, offset) in enumerate(tensors)
        if kind == Q2_0_LAYOUTS[0]
    ]
    if not places:
        return tensors
    left = list(Q2_0_LAYOUTS)
    for name, shape, nbytes in places:
        left = [
            kind
            for kind in left
            if shape[-1] % kind.block == 0 and nbytes == -(-kind.nbytes(shape) // alignment) * alignment
        ]
        if not left:
            raise UnsupportedError(
                f"{path}: tensor {name!r} of shape {shape} has GGML's type 42 and {nbytes} bytes, which are neither "
                "Q2_0's blocks of 64 values in 18 bytes nor those of 128 values in 34 bytes, like the tensors before it; "
                "the file is damaged, or another program uses this number; save it as F16"
            )
    if len(left) > 1:
        raise UnsupportedError(
            f"{path}: its tensors of GGML's type 42 are so small that they may have blocks of 64 or of 128 values; "
            "save the model as F16"
        )
    return [(name, shape, left[0] if kind == Q2_0_LAYOUTS[0] else kind, at) for name, shape, kind, at in tensors]
