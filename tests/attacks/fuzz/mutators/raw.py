"""Mutate bytes without knowledge of their format: the fallback of all others."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

__all__ = ["INTEGERS", "Mutator", "mutate_bytes", "mutate_words"]

Mutator = Callable[[random.Random, bytes], bytes]

INTEGERS = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 31, 32, 33, 64, 127, 128, 255, 256, 257, 1024),
    *(1 << 15, 1 << 16, 1 << 20, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40),
    *((1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
)
_MOST_REPEATED = 64


def _span(rng: random.Random, size: int) -> tuple[int, int]:
    """Choose a piece, usually a short one."""
    start = rng.randrange(size + 1)
    return start, min(size, start + rng.choice((1, 1, 2, 4, 8, 16, rng.randrange(size + 1))))


def _once(rng: random.Random, data: bytes, words: Sequence[bytes]) -> bytes:
    start, end = _span(rng, len(data))
    kind = rng.randrange(9)
    if kind == 0 and data:  # a bit
        at = rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == 1 and data:  # a byte
        at = rng.randrange(len(data))
        return data[:at] + bytes([rng.choice((0, 1, 9, 10, 32, 127, 128, 255, rng.randrange(256)))]) + data[at + 1 :]
    if kind == 2:  # a number
        width = rng.choice((1, 2, 4, 4, 8))
        number = (rng.choice(INTEGERS) & (1 << 8 * width) - 1).to_bytes(width, "little")
        return data[:start] + number + data[start + width :]
    if kind == 3:
        return data[:start] + data[end:]
    if kind == 4:
        return data[:end] + data[start:end] * rng.choice((1, 1, 2, _MOST_REPEATED)) + data[end:]
    if kind == 5:
        return data[:start] + rng.randbytes(rng.choice((1, 2, 4, 8, 32))) + data[start:]
    if kind == 6:
        return data[:start]
    if kind == 7 and words:
        return data[:start] + rng.choice(words) + data[rng.choice((start, end)) :]
    source_start, _ = _span(rng, len(data))  # a piece of another place
    return data[:start] + data[source_start : source_start + end - start] + data[end:]


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Return ``data`` with one to four changes."""
    return mutate_words(())(rng, data)


def mutate_words(words: Sequence[bytes]) -> Mutator:
    """Return a mutator like ``mutate_bytes`` that also inserts ``words`` and replaces words by them."""

    def mutate(rng: random.Random, data: bytes) -> bytes:
        for _ in range(rng.choice((1, 1, 2, 4))):
            data = _once(rng, data, words)
        return data

    return mutate
