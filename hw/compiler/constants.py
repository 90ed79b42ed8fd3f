"""The small tables of a program and of a pass, item by item, as the accelerator reads them.

All are little endian, and the size of an item is a power of two. Items follow each other; a table ends with a whole
beat, and the rest of its last beat are spare items.
"""

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.compiler.row_constants import ITEM_BYTES as ROW_BYTES
from edgedec.hw.config import HEAD_NORM_ITEMS, AcceleratorConfig
from edgedec.hw.isa.instructions import Destination

__all__ = [
    "angle_items",
    "beats_of",
    "coding_items",
    "factor_items",
    "gain_items",
    "head_norm_items",
    "item_bytes",
    "load_items",
    "scale_items",
]

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

_GAIN_BYTES, _CODING_BYTES, _FACTOR_BYTES, _SCALE_BYTES = 2, 8, 4, 2  # bytes of an item of each table


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def item_bytes(destination: Destination, config: AcceleratorConfig) -> int:
    """Return the bytes of an item of a destination; weights, keys and values are taken as whole beats."""
    sizes = {
        Destination.LOAD: _power_of_two(4 * config.slots),
        Destination.ANGLES: _power_of_two(4 * config.slots),
        Destination.GAINS: _GAIN_BYTES,
        Destination.ROWS: ROW_BYTES,
        Destination.CODING: _CODING_BYTES,
        Destination.FACTORS: _FACTOR_BYTES,
        Destination.SCALES: _SCALE_BYTES,
    }
    return sizes.get(destination, config.beat_bytes)


def beats_of(items: int, size: int, beat_bytes: int) -> tuple[int, int]:
    """Return the beats of ``items`` items of ``size`` bytes, and the spare items at their end."""
    beats = -(-items * size // beat_bytes)
    return beats, (beats * beat_bytes - items * size) // size


def _laid(items: int, size: int, *fields: tuple[int, str, NDArray[np.int64]]) -> U8:
    """Arrange fields (first byte, type, integers [items, ...]) of every item; other bytes are zero."""
    items_ = np.zeros((items, size), np.uint8)
    for at, kind, values in fields:
        raw = np.ascontiguousarray(values.reshape(items, -1).astype(kind)).view(np.uint8)
        items_[:, at : at + raw.shape[1]] = raw
    return items_


def gain_items(gains: I64) -> U8:
    """Pack gains s16 [width] into uint8 [width, 2]."""
    return _laid(len(gains), _GAIN_BYTES, (0, "<i2", gains))


def head_norm_items(gains: I64, eps: int, shift: int) -> U8:
    """Pack eps u48 from its low 16 bits on, the shift, and the gains s16 [n] into uint8 [4 + n, 2].

    n is head_dim for a norm of heads, and the width of the residual for a norm of rows.
    """
    before = [eps & 0xFFFF, eps >> 16 & 0xFFFF, eps >> 32, shift]
    return _laid(len(gains) + HEAD_NORM_ITEMS, _GAIN_BYTES, (0, "<u2", np.concatenate([before, gains & 0xFFFF])))


def coding_items(mantissas: I64, middles: I64) -> U8:
    """Pack mantissas u16 [elements] and middles s18 [elements] into uint8 [elements, 8]."""
    return _laid(len(mantissas), _CODING_BYTES, (0, "<u2", mantissas), (4, "<i4", middles))


def factor_items(factors: I64, shift: int) -> U8:
    """Pack c u16 [heads] and sc, the same for all heads, into uint8 [heads, 4]."""
    shifts = np.full(len(factors), shift, np.int64)
    return _laid(len(factors), _FACTOR_BYTES, (0, "<u2", factors), (2, "u1", shifts))


def scale_items(scales: I64) -> U8:
    """Pack V u16 [heads, head_dim] into uint8 [heads * head_dim, 2]."""
    return _laid(scales.size, _SCALE_BYTES, (0, "<u2", scales))


def load_items(rows: I64, slots: int) -> U8:
    """Pack embedding rows s27 [n, width], n <= slots, into uint8 [width, item]; unused slots are zero."""
    return _laid(rows.shape[1], _power_of_two(4 * slots), (0, "<i4", rows.T))


def angle_items(cos: I64, sin: I64, slots: int) -> U8:
    """Pack cos and sin s16 [n, head_dim / 2], n <= slots, into uint8 [head_dim / 2, item]; unused slots are zero."""
    pairs = np.zeros((cos.shape[1], slots, 2), np.int64)
    pairs[:, : len(cos), 0], pairs[:, : len(cos), 1] = cos.T, sin.T
    return _laid(len(pairs), _power_of_two(4 * slots), (0, "<i2", pairs))
