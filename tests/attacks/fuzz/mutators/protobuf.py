"""Mutate a protocol buffer's fields, messages inside messages; the lengths around a change are corrected."""

from __future__ import annotations

import random

from tests.attacks.fuzz.mutators.raw import INTEGERS, mutate_bytes

__all__ = ["field", "protobuf", "varint"]

Field = tuple[int, int, bytes | int]  # number, wire type, value


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def field(number: int, value: bytes | int, wire: int | None = None) -> bytes:
    """Encode one field; ``wire`` None is 0 for integers, 2 for bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    wire = 2 if wire is None else wire
    return varint(number << 3 | wire) + (varint(len(value)) if wire == 2 else b"") + value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _parsed(data: bytes) -> list[Field]:
    at, fields = 0, list[Field]()
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            fields.append((number, wire, value))
            continue
        length = {1: 8, 5: 4}.get(wire, -1)
        if wire == 2:
            length, at = _varint(data, at)
        if not 0 <= length <= len(data) - at:
            raise ValueError
        fields.append((number, wire, data[at : at + length]))
        at += length
    return fields


def _bytes(fields: list[Field]) -> bytes:
    return b"".join(field(number, value, wire if wire else None) for number, wire, value in fields)


def _inside(rng: random.Random, data: bytes) -> bytes:
    """Mutate a value of bytes as a message if it is one, otherwise as bytes."""
    try:
        if data and rng.random() < 0.7:
            return _changed(rng, _parsed(data))
    except (ValueError, IndexError):
        pass
    return mutate_bytes(rng, data)


def _changed(rng: random.Random, fields: list[Field]) -> bytes:
    if not fields:
        return field(rng.choice((1, 2, 3, 41)), rng.choice((b"", 0, 1, b"\x0a\x01a")))
    at = rng.randrange(len(fields))
    number, wire, value = fields[at]
    kind = rng.randrange(10)
    if kind == 0:
        del fields[at]
    elif kind == 1:
        fields.insert(rng.randrange(len(fields) + 1), fields[at])
    elif kind == 2:
        fields[at] = rng.choice((1, 2, 3, 4, 5, 35, 41, 42, 43, 1000)), wire, value
    elif kind == 3:
        fields[at] = number, 0, rng.choice(INTEGERS)
    elif kind == 4:
        fields[at] = number, 5, rng.choice((bytes(4), b"\x00\x00\xc0\x7f", b"\x00\x00\x80\xff", rng.randbytes(4)))
    elif kind == 5:
        fields[at] = number, 2, rng.choice((b"", b"a", b"<0x41>", b"<s>", b"\xe2\x96\x81", rng.randbytes(8)))
    elif kind == 6:
        fields.insert(at, (rng.choice((1, 2, 3)), 2, rng.choice(fields)[2] if wire == 2 else b""))
    elif isinstance(value, int):
        fields[at] = number, wire, max(0, rng.choice((value + 1, value - 1, value ^ 1, rng.randrange(8))))
    else:
        mutated = _inside(rng, value)
        fields[at] = number, wire, mutated if wire == 2 else mutated[: len(value)].ljust(len(value), b"\0")
    return _bytes([(n, 2 if isinstance(v, bytes) and w == 0 else w, v) for n, w, v in fields])


def protobuf(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.2:
        return mutate_bytes(rng, data)
    try:
        for _ in range(rng.choice((1, 1, 2, 3))):
            data = _changed(rng, _parsed(data))
        return data
    except (ValueError, IndexError):
        return mutate_bytes(rng, data)
