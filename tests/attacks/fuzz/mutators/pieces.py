"""Mutate vocabularies that are lists: a tokenizer.bin's records, a listing's lines, a list of ranks."""

from __future__ import annotations

import base64
import random
import struct
from typing import Any

from tests.attacks.fuzz.mutators.raw import mutate_bytes

__all__ = ["lines", "ranks", "tokenizer_records"]

_PIECES = (b"a", b"th", b" ", b"<0x41>", b"<s>", b"<unk>", b"\n<s>\n", b"\xe2\x96\x81", b"", b"\xff", b"a" * 40, b"\t")
_SCORES = (0.0, -1.0, 1.0, -5.0, float("nan"), float("inf"), float("-inf"), 1e-45, 3e38)
_MOST_LINES = 400


def _reordered(rng: random.Random, items: list[Any]) -> bool:
    """Remove, repeat or exchange an item; return False if nothing happened."""
    if not items:
        return False
    at, other_index = rng.randrange(len(items)), rng.randrange(len(items))
    kind = rng.randrange(6)
    if kind == 0:
        del items[at]
    elif kind == 1 and len(items) < _MOST_LINES:
        items.insert(other_index, items[at])
    elif kind == 2:
        items[at], items[other_index] = items[other_index], items[at]
    else:
        return False
    return True


def tokenizer_records(rng: random.Random, data: bytes) -> bytes:
    """Mutate llama2.c's records: int32 longest piece, then float32 score, int32 length and the piece."""
    if len(data) < 4 or rng.random() < 0.2:
        return mutate_bytes(rng, data)
    records, at = list[tuple[float, bytes]](), 4
    while at + 8 <= len(data):
        score, length = struct.unpack_from("<fi", data, at)
        length = min(max(length, 0), len(data) - at - 8)
        records.append((score, data[at + 8 : at + 8 + length]))
        at += 8 + length
    (longest,) = struct.unpack_from("<i", data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if _reordered(rng, records):
            continue
        place = rng.randrange(len(records) + 1)
        score, piece = records[place] if place < len(records) else (0.0, b"a")
        if rng.random() < 0.4:
            score = rng.choice(_SCORES)
        else:
            piece = rng.choice((mutate_bytes(rng, piece), rng.choice(_PIECES), piece + rng.choice(_PIECES)))[:2000]
        records[place : place + 1] = [(score, piece)]
    if rng.random() < 0.7:
        longest = max((len(piece) for _, piece in records), default=1)
    return struct.pack("<i", longest) + b"".join(struct.pack("<fi", score, len(one)) + one for score, one in records)


def lines(rng: random.Random, data: bytes) -> bytes:
    """Mutate lines of a piece, a tab and a score."""
    parts = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        if _reordered(rng, parts):
            continue
        if not parts:
            return rng.choice(_PIECES)
        at = rng.randrange(len(parts))
        piece, tab, score = parts[at].rpartition(b"\t")
        kind = rng.randrange(4)
        if kind == 0:
            piece = rng.choice((*_PIECES, mutate_bytes(rng, piece)))
        elif kind == 1:
            score = rng.choice((b"0", b"-1", b"-1.5", b"nan", b"1e999", b"1_0", b" 7 ", b"", mutate_bytes(rng, score)))
        elif kind == 2:
            parts.insert(at, rng.choice(_PIECES) + b"\t" + str(-rng.randrange(40)).encode())
            continue
        parts[at] = piece + tab + score if kind != 3 else mutate_bytes(rng, parts[at])
    return b"\n".join(parts)


def ranks(rng: random.Random, data: bytes) -> bytes:
    """Mutate lines of Base64, a space and a number, which usually is made consistent."""
    parts = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        if _reordered(rng, parts):
            continue
        if not parts:
            return rng.choice(_PIECES)
        at = rng.randrange(len(parts))
        token, _, rank = parts[at].partition(b" ")
        kind = rng.randrange(4)
        if kind == 0:
            token = base64.b64encode(rng.choice((*_PIECES, rng.randbytes(2), b"ab", b"abc", b"a" * 2000)))
        elif kind == 1:
            token = mutate_bytes(rng, token)
        elif kind == 2:
            rank = rng.choice((b"0", b"-1", b"00", b"99999999", str(rng.randrange(300)).encode()))
        parts[at] = token + b" " + rank if kind != 3 else mutate_bytes(rng, parts[at])
    if rng.random() < 0.6:
        parts = [line.partition(b" ")[0] + b" %d" % at if line else line for at, line in enumerate(parts)]
    return b"\n".join(parts)
