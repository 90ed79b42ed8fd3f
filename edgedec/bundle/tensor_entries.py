"""The entries of a manifest that describe tensors, and their checks. See docs/bundle-format.md."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from edgedec.errors import BundleError
from edgedec.schemes import Scheme, scheme_from_json

__all__ = ["ALIGNMENT", "Tensor", "check_overlaps", "is_size", "naming", "read_shape", "read_tensor"]

ALIGNMENT = 64  # bytes: a cache line, and any vector register
MAX_DIMENSIONS = 8


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """An entry of the manifest: the offsets of the parts of one weight in ``weights.bin``."""

    shape: tuple[int, ...]
    scheme: Scheme
    offsets: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.scheme.parts(self.shape).values())

    @property
    def count(self) -> int:
        return int(np.prod(self.shape, dtype=object))


def is_size(value: Any, limit: int) -> bool:
    """Return True for an integer in 0..limit; JSON's true and 1.0 are not integers."""
    return type(value) is int and 0 <= value <= limit


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Add the name of a file to BundleErrors of schemes, which do not know their file."""
    try:
        yield
    except BundleError as error:
        raise BundleError(f"{file}: {error}") from None


def read_shape(file: Path, name: str, shape: Any, scheme: Any) -> tuple[tuple[int, ...], Scheme]:
    """Read the shape and the scheme of an entry.

    Raises:
        BundleError: one of them is impossible, or they do not fit each other.
    """
    where = f"{file}: tensor {name}"
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= MAX_DIMENSIONS
        or not all(is_size(size, 2**40) and size for size in shape)
    ):
        raise BundleError(f"{where}: impossible shape {reprlib.repr(shape)}")
    with naming(file):
        read = scheme_from_json(name, scheme)
    if read.kind != "float" and len(shape) != 2:
        raise BundleError(f"{where}: {read.kind} needs two dimensions, not {shape}")
    return tuple(shape), read


def read_tensor(file: Path, name: str, entry: Any, available: int) -> Tensor:
    """Read an entry of ``tensors``. ``available`` is the size of the weights file in bytes.

    Raises:
        BundleError: the entry is malformed, or a part of the tensor is not in the file.
    """
    where = f"{file}: tensor {name}"
    if not isinstance(entry, dict) or set(entry) != {"shape", "scheme", "offsets"}:
        raise BundleError(f"{where}: must have shape, scheme and offsets, not {reprlib.repr(entry)}")
    shape, scheme = read_shape(file, name, entry["shape"], entry["scheme"])
    offsets = entry["offsets"]
    tensor = Tensor(shape=shape, scheme=scheme, offsets=offsets)
    parts = scheme.parts(tensor.shape)
    if not isinstance(offsets, dict) or set(offsets) != set(parts):
        raise BundleError(f"{where}: offsets must name {', '.join(parts)}, not {reprlib.repr(offsets)}")
    for part, spec in parts.items():
        start = offsets[part]
        if not is_size(start, available - spec.nbytes) or start % ALIGNMENT:
            raise BundleError(
                f"{where}: {part} of {spec.nbytes} bytes at offset {reprlib.repr(start)} "
                f"does not fit weights.bin of {available} bytes"
            )
    return tensor


def check_overlaps(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Check that no byte of the weights belongs to two parts.

    Raises:
        BundleError: one does.
    """
    ranges = sorted(
        (tensor.offsets[part], tensor.offsets[part] + spec.nbytes, name)
        for name, tensor in tensors.items()
        for part, spec in tensor.scheme.parts(tensor.shape).items()
    )
    for (_, stop, name), (start, _, other) in pairwise(ranges):
        if start < stop:
            raise BundleError(f"{file}: tensors {name} and {other} overlap at byte {start} of weights.bin")
