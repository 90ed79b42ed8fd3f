"""SentencePiece's compiled normalization, checked before the ``tokenizers`` library reads it, which trusts its numbers.

Layout: uint32 bytes of the trie, the trie, then texts in UTF-8, each with a NUL behind it. The trie is a double array of
uint32 units: bits 7:0 and 31 are the label, bit 8 says that a value is among the children, bits 31:10, eight higher if bit 9
is set, are the offset. The children of a unit lie at (its place xor its offset) xor label, the value at label 0: where in
the texts the replacement begins.

Source: ``normalizer.cc`` of SentencePiece; ``darts.h`` of Darts-clone.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["check_charsmap", "check_charsmaps"]

_KEY = "precompiled_charsmap"
_LABELS = np.arange(1, 256)
_NODES_AT_ONCE = 1024


def check_charsmaps(text: str) -> None:
    """All compiled maps of a ``tokenizer.json``.

    Raises:
        ValueError: one is damaged, or the text is no JSON.
        RecursionError: it is nested too deeply.
    """

    def look(pairs: list[tuple[str, Any]]) -> None:
        for key, value in pairs:
            if key == _KEY and isinstance(value, str):
                check_charsmap(base64.b64decode(value))

    if _KEY in text or "\\u" in text:  # which could spell the key
        json.loads(text, object_pairs_hook=look)


def check_charsmap(data: bytes) -> None:
    """No text that is normalized may lead out of the trie, or out of the texts.

    Raises:
        ValueError: one would.
    """
    size = int.from_bytes(data[:4], "little")
    if size % 4 or not 0 < size <= len(data) - 4:
        raise ValueError(f"{_KEY}: a trie of {size} bytes, of {len(data)} bytes in all")
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
    starts = _starts(data[4 + size :])
    seen = np.zeros(len(units), np.bool_)
    waiting: NDArray[np.int64] = np.zeros(1, np.int64)  # the root
    while len(waiting):
        some, waiting = waiting[:_NODES_AT_ONCE], waiting[_NODES_AT_ONCE:]
        bases = some ^ (units[some] >> 10 << (units[some] >> 9 & 1) * 8)
        if ((bases | 255) >= len(units)).any():
            raise ValueError(f"{_KEY}: a unit of the trie leads out of it")
        values = units[bases[(units[some] >> 8 & 1).astype(np.bool_)]] & 0x7FFFFFFF
        if not np.isin(values, starts).all():
            raise ValueError(f"{_KEY}: a value of the trie is not where a text begins")
        children = bases[:, None] ^ _LABELS
        found = np.unique(children[units[children] & 0x800000FF == _LABELS])
        found = found[~seen[found]]
        seen[found] = True
        waiting = np.concatenate([waiting, found])


def _starts(texts: bytes) -> NDArray[np.int64]:
    """Where characters begin, and the end. A UnicodeDecodeError is a ValueError."""
    texts.decode("utf-8")
    return np.append(np.flatnonzero(np.frombuffer(texts, np.uint8) & 0xC0 != 0x80), len(texts))
