"""Read a model that llama-gguf-split split into several GGUF files ``NAME-00001-of-0000N.gguf``.

Each part is a whole GGUF file with tensors of its own; the first part has the model's metadata. Every part has
``split.no`` (from 0), ``split.count`` and ``split.tensors.count`` (of all parts together). Source: tools/gguf-split of
llama.cpp.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from edgedec.errors import BundleError
from edgedec.quantize.readers.gguf.header import GgufHeader, GgufTensor, Value, read_header
from edgedec.quantize.readers.untrusted import shown

__all__ = ["read_parts"]

_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.ASCII | re.DOTALL)
_MOST_PARTS = 9999
_NO, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


def read_parts(path: Path) -> GgufHeader:
    """Return the header of the model in the file ``path``, or in all parts of the model if ``path`` is a part.

    Raises:
        BundleError: a part is damaged or missing, or belongs to another model.
        UnsupportedError: see ``read_header``.
    """
    header = read_header(path)
    count = _number(header, _COUNT, _MOST_PARTS, 1) or 1
    if count == 1:
        return header
    headers = [header if part == path else read_header(part) for part in _files(header, count)]
    first, tensors = headers[0], dict[str, GgufTensor]()
    for number, part in enumerate(headers):
        _check(part, number, count, first)
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise BundleError(f"{part.path}: tensor {name!r} is in {tensors[name].path.name} too")
            tensors[name] = tensor
    total = _number(first, _TENSORS, 1 << 31)
    if len(tensors) != total:
        raise BundleError(f"{first.path}: its {count} parts have {len(tensors)} tensors, but {_TENSORS} is {total}")
    return GgufHeader(path=first.path, metadata=first.metadata, tensors=tensors)


def _number(header: GgufHeader, key: str, most: int, default: int | None = None) -> int:
    value = header.metadata.get(key, default)
    if type(value) is not int or not 0 <= value <= most:
        raise BundleError(f"{header.path}: {key} must be an integer in 0..{most}, not {shown(value)}")
    return value


def _files(header: GgufHeader, count: int) -> list[Path]:
    """Return the paths of all parts in order, after checking that they exist."""
    path, number = header.path, _number(header, _NO, count - 1) + 1
    match = _NAME.fullmatch(path.name)
    if not match or (int(match[2]), int(match[3])) != (number, count):
        raise BundleError(
            f"{path} is part {number} of {count}, so its name must end with -{number:05d}-of-{count:05d}.gguf, and the "
            "names of the other parts accordingly; restore the original names"
        )
    files = [path.with_name(f"{match[1]}-{at:05d}-of-{count:05d}.gguf") for at in range(1, count + 1)]
    missing = [part.name for part in files if not part.is_file()]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise BundleError(
            f"{path} is part {number} of {count}, but {missing[0]}{more} is not in its folder; fetch it, too"
        )
    return files


def _check(part: GgufHeader, number: int, count: int, first: GgufHeader) -> None:
    """Check that a file is the part that its name says.

    Raises:
        BundleError: it is another part, or belongs to another model.
    """
    numbers = _number(part, _NO, _MOST_PARTS), _number(part, _COUNT, _MOST_PARTS)
    if numbers != (number, count):
        raise BundleError(
            f"{part.path}: says that it is part {numbers[0] + 1} of {numbers[1]}, its name part {number + 1} of {count}; "
            "parts were mixed up"
        )
    for key, value in part.metadata.items():
        if key != _NO and not _same(value, first.metadata.get(key)):
            raise BundleError(
                f"{part.path}: its {key} is not that of {first.path.name}; parts of two models were mixed up"
            )


def _same(one: Value, other: Value | None) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and np.array_equal(one, other)
    return type(one) is type(other) and one == other
