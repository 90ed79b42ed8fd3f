"""Put several files into one input: each but the last begins with its length, a little-endian uint32, cut to the rest."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["framed", "unframed"]


def framed(contents: Sequence[bytes]) -> bytes:
    *leading, last = contents
    return b"".join(len(content).to_bytes(4, "little") + content for content in leading) + last


def unframed(data: bytes, count: int) -> list[bytes]:
    """Split any bytes into ``count`` files."""
    files, at = list[bytes](), 0
    for _ in range(count - 1):
        length = int.from_bytes(data[at : at + 4], "little")
        files.append(data[at + 4 : at + 4 + length])
        at += 4 + len(files[-1])
    return [*files, data[at:]]
