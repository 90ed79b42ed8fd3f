"""Encode ternary matrices as the byte stream of the accelerator, in the slow and obvious way."""

from __future__ import annotations

import numpy as np

from edgedec.reference.integer_profile.numbers import I64

__all__ = ["beat_of", "blocks_of", "padded_to"]


def padded_to(x: I64, rows: int, columns: int) -> I64:
    """Pad ``x`` [r, c] with zeros up to multiples of ``rows`` and ``columns``."""
    return np.pad(x, ((0, -x.shape[0] % rows), (0, -x.shape[1] % columns)))


def beat_of(trits: I64) -> list[int]:
    """Encode [5, columns] as a byte per column."""
    return [int(sum((trit + 1) * 3**row for row, trit in enumerate(column))) for column in trits.T]


def blocks_of(codes: I64, columns: int) -> list[dict[str, object]]:
    """Convert [slots, k] to payloads of ``hw.shapes.codes``, one per ``columns`` columns."""
    padded = padded_to(codes, 1, columns)
    starts = range(0, padded.shape[1], columns)
    return [{"codes": padded[:, at : at + columns].T.tolist(), "last": int(at == starts[-1])} for at in starts]
