"""Attention masks between the rows of a pass, as packed bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.runtime.protocols import I32, U64, Masks

__all__ = ["FORMS", "form", "pack", "tree", "unpack"]

FORMS: tuple[Masks, ...] = ("chain", "tree", "any")  # each contained in the next


def pack(visible: NDArray[np.bool_]) -> U64:
    """Convert bool [n, n] to uint64 [n, ceil(n / 64)]. Bit j of row i is set if row i attends to row j."""
    n = len(visible)
    padded = np.zeros((n, -(-n // 64) * 64), np.bool_)
    padded[:, :n] = visible
    return np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64, copy=False)


def unpack(visible: U64, n: int) -> NDArray[np.bool_]:
    """Convert the packed mask of ``n`` rows back to bool [n, n]; the inverse of ``pack``."""
    data = np.ascontiguousarray(visible, "<u8").view(np.uint8)
    return np.unpackbits(data, axis=1, count=n, bitorder="little").astype(np.bool_)


def tree(parents: I32) -> U64:
    """Return the mask in which every node attends to its ancestors and itself.

    ``parents`` int32 [n] holds each node's parent: ``parents[i] < i``, and -1 for a root.
    """
    masks: list[int] = []  # Python integers as sets of bits, which are fast for small trees
    for node, parent in enumerate(parents.tolist()):
        masks.append((masks[parent] if parent >= 0 else 0) | 1 << node)
    words = -(-len(masks) // 64)
    data = b"".join(bits.to_bytes(8 * words, "little") for bits in masks)
    return np.frombuffer(data, "<u8").reshape(len(masks), words).astype(np.uint64, copy=False)


def form(visible: U64, n: int) -> Masks:
    """Return the narrowest form that a mask of ``n`` rows has.

    - ``chain``: each row sees itself and all rows before it;
    - ``tree``: each row sees itself and what one row before it, its parent, sees; or itself alone;
    - ``any``: each row sees itself.

    Raises:
        EdgedecError: the mask has another shape, a row that does not see itself, or bits after row n.
    """
    words = -(-n // 64)
    if visible.shape != (n, words):
        raise EdgedecError(f"the mask of a pass of {n} rows must be [{n}, {words}], not {list(visible.shape)}")
    rows = [int.from_bytes(row.tobytes(), "little") for row in np.ascontiguousarray(visible, "<u8")]
    for row, seen in enumerate(rows):
        if not seen >> row & 1:
            raise EdgedecError(f"row {row} of a pass does not see itself; set its own bit in its mask")
        if seen >> n:
            raise EdgedecError(
                f"row {row} of a pass of {n} rows sees row {seen.bit_length() - 1}, which it does not have"
            )
    if all(seen == (2 << row) - 1 for row, seen in enumerate(rows)):
        return "chain"
    for row, seen in enumerate(rows):
        above = seen ^ 1 << row
        parent = above.bit_length() - 1  # -1: the row sees itself alone
        if parent > row or (above and above != rows[parent]):
            return "any"
    return "tree"
