"""Check SentencePiece's compiled normalization, because the ``tokenizers`` library does not check its numbers.

Layout: uint32 size of the trie in bytes, the trie, then texts in UTF-8, each followed by a NUL. The trie is a double array
of uint32 units: bits 7:0 and 31 are the label, bit 8 says that a value is among the children, and bits 31:10, shifted left
by another eight bits if bit 9 is set, are the offset. The children of a unit lie at (its place xor its offset) xor label.
The child with label 0 is the value, the position of the replacement in the texts.

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
    """Check all compiled maps of a ``tokenizer.json``.

    Raises:
        ValueError: a map is damaged, or the text is not JSON.
        RecursionError: the JSON is nested too deeply.
    """

    def look(pairs: list[tuple[str, Any]]) -> None:
        for key, value in pairs:
            if key == _KEY and isinstance(value, str):
                check_charsmap(base64.b64decode(value))

    if _KEY in text or "\\u" in text:  # the key may be written with escapes
        json.loads(text, object_pairs_hook=look)


def check_charsmap(data: bytes) -> None:
    """Check that normalizing a text can never read outside the trie or the texts.

    Raises:
        ValueError: a unit or a value of the trie points outside.
    """
    size = int.from_bytes(data[:4], "little")
    if size % 4 or not 0 < size <= len(data) - 4:
        raise ValueError(f"{_KEY}: a trie of {size} bytes in a map of {len(data)} bytes")
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
    starts = _starts(data[4 + size :])
    seen = np.zeros(len(units), np.bool_)
    waiting: NDArray[np.int64] = np.zeros(1, np.int64)  # the root
    while len(waiting):
        some, waiting = waiting[:_NODES_AT_ONCE], waiting[_NODES_AT_ONCE:]
        bases = some ^ (units[some] >> 10 << (units[some] >> 9 & 1) * 8)
        if ((bases | 255) >= len(units)).any():
            raise ValueError(f"{_KEY}: a unit of the trie points outside the trie")
        values = units[bases[(units[some] >> 8 & 1).astype(np.bool_)]] & 0x7FFFFFFF
        if not np.isin(values, starts).all():
            raise ValueError(f"{_KEY}: a value of the trie is not the start of a text")
        children = bases[:, None] ^ _LABELS
        fresh = np.unique(children[units[children] & 0x800000FF == _LABELS])
        fresh = fresh[~seen[fresh]]
        seen[fresh] = True
        waiting = np.concatenate([waiting, fresh])


def _starts(texts: bytes) -> NDArray[np.int64]:
    """Return the positions where characters begin, and the end. A UnicodeDecodeError is a ValueError."""
    texts.decode("utf-8")
    return np.append(np.flatnonzero(np.frombuffer(texts, np.uint8) & 0xC0 != 0x80), len(texts))
