"""One input, several files: each but the last begins with its length, a little-endian uint32, cut to what is left."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["framed", "unframed"]


def framed(contents: Sequence[bytes]) -> bytes:
    *others, last = contents
    return b"".join(len(one).to_bytes(4, "little") + one for one in others) + last


def unframed(data: bytes, count: int) -> list[bytes]:
    """``count`` files of any bytes at all."""
    found, at = list[bytes](), 0
    for _ in range(count - 1):
        length = int.from_bytes(data[at : at + 4], "little")
        found.append(data[at + 4 : at + 4 + length])
        at += 4 + len(found[-1])
    return [*found, data[at:]]
