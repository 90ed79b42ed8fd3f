"""Who sees whom inside a pass, as packed bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime.protocols import I32, U64

__all__ = ["pack", "tree", "unpack"]


def pack(visible: NDArray[np.bool_]) -> U64:
    """bool [n, n] -> uint64 [n, ceil(n / 64)]; bit j of row i: row i sees row j."""
    n = len(visible)
    padded = np.zeros((n, -(-n // 64) * 64), np.bool_)
    padded[:, :n] = visible
    return np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64, copy=False)


def unpack(visible: U64, n: int) -> NDArray[np.bool_]:
    """The inverse of ``pack``."""
    data = np.ascontiguousarray(visible, "<u8").view(np.uint8)
    return np.unpackbits(data, axis=1, count=n, bitorder="little").astype(np.bool_)


def tree(parents: I32) -> U64:
    """Every node sees its ancestors and itself. ``parents[i] < i``, -1 for a root."""
    seen: list[int] = []  # Python integers as sets of bits: a tree is small, and each round has one
    for node, parent in enumerate(parents.tolist()):
        seen.append((seen[parent] if parent >= 0 else 0) | 1 << node)
    words = -(-len(seen) // 64)
    data = b"".join(bits.to_bytes(8 * words, "little") for bits in seen)
    return np.frombuffer(data, "<u8").reshape(len(seen), words).astype(np.uint64, copy=False)
