"""Mutate a llama2.c checkpoint: its header's numbers, usually with a body of the size that they require."""

from __future__ import annotations

import random
import struct

from tests.attacks.fuzz.mutators.raw import INTEGERS, mutate_bytes

__all__ = ["llama2c"]

_MAGIC = 0x616B3432
_MAX_BYTES = 1 << 15
_SMALL = (1, 2, 3, 4, 6, 8, 12, 13, 16, 24)


def _body_bytes(version: int, numbers: list[int], tied: bool, group: int) -> int:
    dim, hidden, layers, heads, kv_heads, vocab, positions = numbers
    kv_dim = dim // heads * kv_heads
    norms = (2 * layers + 1) * dim
    matrices = layers * (2 * dim * dim + 2 * kv_dim * dim + 3 * hidden * dim) + abs(vocab) * dim * (1 if tied else 2)
    if version == 0:
        return 4 * (norms + matrices + 2 * positions * (dim // heads // 2))
    return 4 * (norms + matrices) if version == 1 else 4 * norms + matrices + matrices // group * 4


def llama2c(rng: random.Random, data: bytes) -> bytes:
    long = data[:4] == struct.pack("<I", _MAGIC)
    if len(data) < (256 if long else 28) or rng.random() < 0.2:
        return mutate_bytes(rng, data)
    start, size = (8, 256) if long else (0, 28)
    version = struct.unpack_from("<i", data, 4)[0] if long else 0
    numbers = list(struct.unpack_from("<7i", data, start))
    tied, group = (data[36], struct.unpack_from("<i", data, 37)[0]) if long else (int(numbers[5] > 0), 1)
    body = data[size:]
    if rng.random() < 0.25:
        body = mutate_bytes(rng, body)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        at = rng.randrange(7)
        numbers[at] = rng.choice((*_SMALL, *_SMALL, -numbers[at], rng.choice(INTEGERS)))
    if long and rng.random() < 0.3:
        version = rng.choice((0, 1, 2, 3))
        tied, group = rng.choice((0, 1, 1, 7)), rng.choice((1, 2, 4, 8, 0, -1, 1 << 20))
    numbers = [(number + (1 << 31)) % (1 << 32) - (1 << 31) for number in numbers]
    header = struct.pack("<7i", *numbers)
    if long:
        header = (struct.pack("<Ii", _MAGIC, version) + header + struct.pack("<Bi", tied, group)).ljust(256, b"\0")
    if rng.random() < 0.85:
        try:
            body_size = _body_bytes(version, numbers, bool(tied) if long else numbers[5] > 0, group)
        except ZeroDivisionError:
            body_size = len(body)
        if 0 <= body_size <= _MAX_BYTES:
            body = body[:body_size].ljust(body_size, b"\x3d")
    return header + body
