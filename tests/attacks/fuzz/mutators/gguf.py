"""Mutate a GGUF file: its metadata entries and its tensors, put together again with correct offsets."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgedec.quantize.readers.gguf.blocks import KINDS
from tests.attacks.fuzz.mutators.raw import INTEGERS, Mutator, mutate_bytes
from tests.quantize.readers.support import make_gguf as builder
from tests.quantize.readers.support.make_gguf import Raw, RawTensor, file_bytes

__all__ = ["gguf"]

_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MAX_BYTES = 1 << 15
_FLOATS = (0.0, -1.0, 1e-30, 1e-45, 0.5, 1.0, 2.0, 1e4, 3e38, math.inf, math.nan)


@dataclass
class _File:
    entries: list[tuple[bytes, Raw]]
    tensors: list[RawTensor]


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    if length > len(data):
        raise ValueError
    return data[at + 8 : at + 8 + length], at + 8 + length


def _value_end(data: bytes, kind: int, at: int) -> int:
    if kind == builder.STRING:
        return _text(data, at)[1]
    if kind != builder.ARRAY:
        return at + _WIDTHS[kind]
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if count > len(data):
        raise ValueError
    if inner != builder.STRING:
        return at + int(count) * _WIDTHS[inner]
    for _ in range(count):
        at = _text(data, at)[1]
    return at


def _parsed(data: bytes) -> _File:
    """Parse the file; any error passes through for an invalid file."""
    count, entry_count = struct.unpack_from("<QQ", data, 8)
    at, entries = 24, []
    for _ in range(entry_count):
        key, at = _text(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        end = _value_end(data, kind, at + 4)
        entries.append((key, Raw(kind, data[at + 4 : end])))
        at = end
    tensors = []
    for _ in range(count):
        name, at = _text(data, at)
        (dimensions,) = struct.unpack_from("<I", data, at)
        *sizes, kind, offset = struct.unpack_from(f"<{min(dimensions, 8)}QIQ", data, at + 4)
        at += 16 + 8 * dimensions
        tensors.append(RawTensor(name, sizes, kind, b"", offset))
    start = -(-at // 32) * 32
    return _File(
        entries,
        [replace(tensor, data=data[start + tensor.offset :][: _size(tensor)], offset=None) for tensor in tensors],  # type: ignore[operator]
    )


def _size(tensor: RawTensor) -> int:
    return min(KINDS.get(tensor.kind, KINDS[0]).nbytes(tuple(tensor.sizes)), _MAX_BYTES)


def _fitted(tensor: RawTensor) -> RawTensor:
    """Return the tensor with as many bytes as its shape and type take."""
    return replace(tensor, data=tensor.data[: _size(tensor)].ljust(_size(tensor), b"\x01"))


def _some_value(rng: random.Random, words: Sequence[str]) -> Raw:
    values: tuple[Any, ...] = (
        rng.choice(INTEGERS) & 0xFFFFFFFF,
        rng.choice(_FLOATS),
        rng.random() < 0.5,
        rng.choice((*words, "", "a", "\x1b[2J")),
        [rng.choice(("a", "b", "<s>", ""))] * rng.choice((1, 2, 13)),
        [rng.choice(INTEGERS) & 0x7F] * rng.choice((1, 2, 13)),
        [rng.choice(_FLOATS)] * rng.choice((1, 2, 13)),
    )
    kind = rng.randrange(len(values) + 1)
    if kind < len(values):
        return builder.raw(values[kind])
    number = rng.choice(tuple(_WIDTHS))
    return Raw(number, rng.randbytes(_WIDTHS[number]))


def _change_entry(rng: random.Random, file: _File, keys: Sequence[str], words: Sequence[str]) -> None:
    if not file.entries or rng.random() < 0.2:
        file.entries.append((rng.choice(keys).encode(), _some_value(rng, words)))
        return
    at = rng.randrange(len(file.entries))
    key, value = file.entries[at]
    kind = rng.randrange(6)
    if kind == 0:
        del file.entries[at]
    elif kind == 1:
        file.entries[at] = key, _some_value(rng, words)
    elif kind == 2:
        file.entries[at] = key, Raw(value.kind, mutate_bytes(rng, value.data))
    elif kind == 3:
        file.entries[at] = rng.choice(keys).encode(), value
    elif kind == 4:
        file.entries[at] = key, rng.choice(file.entries)[1]
    else:  # an element of an array, or a number
        file.entries[at] = key, Raw(value.kind, _element_changed(rng, value))


def _element_changed(rng: random.Random, value: Raw) -> bytes:
    data, start = value.data, 0
    width = _WIDTHS.get(value.kind, 1)
    if value.kind == builder.ARRAY and len(data) >= 12:
        width, start = _WIDTHS.get(struct.unpack_from("<I", data)[0], 1), 12
    if len(data) - start < width:
        return data
    at = rng.randrange(start, len(data) - width + 1, width)
    number = rng.choice((rng.choice(INTEGERS), rng.randrange(20))) & (1 << 8 * width) - 1
    return data[:at] + number.to_bytes(width, "little") + data[at + width :]


def _change_tensor(rng: random.Random, file: _File, names: Sequence[str]) -> None:
    if not file.tensors:
        return
    at = rng.randrange(len(file.tensors))
    tensor = file.tensors[at]
    kind = rng.randrange(8)
    if kind == 0:
        del file.tensors[at]
    elif kind == 1:
        file.tensors[at] = replace(tensor, name=rng.choice(names).encode())
    elif kind == 2:
        file.tensors[at] = _fitted(replace(tensor, kind=rng.choice((0, 0, 1, 30, 8, 34, 35, *KINDS, 36, 99))))
    elif kind == 3:
        sizes = rng.choice((tensor.sizes[::-1], [*tensor.sizes, 1], [math.prod(tensor.sizes)], [256, 2], [32, 3], [4]))
        file.tensors[at] = _fitted(replace(tensor, sizes=sizes))
    elif kind == 4:
        file.tensors[at] = _fitted(replace(tensor, data=mutate_bytes(rng, tensor.data)))
    elif kind == 5:
        file.tensors.append(replace(tensor, name=rng.choice(names).encode()))
    elif kind == 6:
        other_index = rng.randrange(len(file.tensors))
        file.tensors[at], file.tensors[other_index] = file.tensors[other_index], tensor
    else:
        sizes = list(tensor.sizes) or [1]
        sizes[rng.randrange(len(sizes))] = rng.choice((1, 2, 4, 8, 12, 13, 24, 32, 256, 512))
        file.tensors[at] = _fitted(replace(tensor, sizes=sizes))


def _other_architecture(rng: random.Random, file: _File, architectures: Sequence[str]) -> None:
    """Return the same model under another name, keys too."""
    new_name = rng.choice(architectures).encode()
    old_name = next((value.data[8:] for key, value in file.entries if key == b"general.architecture"), b"")
    file.entries = [
        (new_name + key[len(old_name) :] if old_name and key.startswith(old_name + b".") else key, value)
        for key, value in file.entries
    ]
    file.entries = [
        (key, builder.raw(new_name.decode()) if key == b"general.architecture" else value)
        for key, value in file.entries
    ]


def gguf(*, keys: Sequence[str], words: Sequence[str], names: Sequence[str], architectures: Sequence[str]) -> Mutator:
    """Return a mutator with what the reader knows: metadata keys, texts among the values, names of tensors,
    architectures.
    """

    def mutate(rng: random.Random, data: bytes) -> bytes:
        if rng.random() < 0.15:
            return mutate_bytes(rng, data)
        try:
            file = _parsed(data)
            for _ in range(rng.choice((1, 1, 2, 3))):
                place = rng.random()
                if place < 0.55:
                    _change_entry(rng, file, keys, words)
                elif place < 0.95:
                    _change_tensor(rng, file, names)
                else:
                    _other_architecture(rng, file, architectures)
            return file_bytes(file.entries, file.tensors)
        except (ValueError, KeyError, struct.error, OverflowError, MemoryError):
            return mutate_bytes(rng, data)

    return mutate
