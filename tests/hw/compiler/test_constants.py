"""Compare items with the table of docs/accelerator.md, written and read one number at a time."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.hw.compiler.constants import (
    angle_items,
    beats_of,
    coding_items,
    factor_items,
    gain_items,
    item_bytes,
    load_items,
    scale_items,
)
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Destination

S16 = st.integers(-(1 << 15), (1 << 15) - 1)
U16 = st.integers(0, (1 << 16) - 1)


def array(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def config(slots: int) -> AcceleratorConfig:
    return AcceleratorConfig(slots=slots)


@given(st.lists(S16, min_size=1, max_size=12))
def test_gains_are_laid_out_as_documented(gains: list[int]) -> None:
    items = gain_items(array(gains))
    assert items.shape == (len(gains), item_bytes(Destination.GAINS, config(1)))
    assert items.tobytes() == struct.pack(f"<{len(gains)}h", *gains)


@given(st.lists(st.tuples(U16, st.integers(-(1 << 17), (1 << 17) - 1)), min_size=1, max_size=9))
def test_coding_is_laid_out_as_documented(elements: list[tuple[int, int]]) -> None:
    items = coding_items(array([m for m, _ in elements]), array([middle for _, middle in elements]))
    assert items.tobytes() == b"".join(struct.pack("<H2xi", *element) for element in elements)
    assert items.shape[1] == item_bytes(Destination.CODING, config(1))


@given(st.lists(U16, min_size=1, max_size=9), st.integers(0, 47))
def test_factors_are_laid_out_as_documented(factors: list[int], shift: int) -> None:
    items = factor_items(array(factors), shift)
    assert items.tobytes() == b"".join(struct.pack("<HBx", factor, shift) for factor in factors)
    assert items.shape[1] == item_bytes(Destination.FACTORS, config(1))


@given(st.sampled_from([1, 2, 7, 8]), st.integers(1, 3), st.data())
def test_scales_are_laid_out_as_documented(head_dim: int, heads: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(U16, min_size=heads * head_dim, max_size=heads * head_dim))
    items = scale_items(array(values).reshape(heads, head_dim))
    assert items.tobytes() == struct.pack(f"<{len(values)}H", *values)
    assert items.shape == (heads * head_dim, item_bytes(Destination.SCALES, config(1)))


@given(st.integers(1, 8), st.integers(1, 13), st.data())
def test_loads_are_laid_out_as_documented(slots: int, width: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, slots))
    rows = np.random.default_rng(width).integers(-(1 << 26) + 1, 1 << 26, (n, width))
    items = load_items(rows, slots)
    size = item_bytes(Destination.LOAD, config(slots))
    assert items.shape == (width, size)
    assert size & (size - 1) == 0
    assert 4 * slots <= size < 8 * slots
    for element, item in enumerate(items):
        for slot in range(slots):
            expected = int(rows[slot, element]) if slot < n else 0
            assert struct.unpack_from("<i", item.tobytes(), 4 * slot) == (expected,)
        assert not item[4 * slots :].any()


@given(st.integers(1, 8), st.integers(1, 6))
def test_angles_are_laid_out_as_documented(slots: int, pairs: int) -> None:
    rng = np.random.default_rng(slots)
    cos, sin = rng.integers(-(1 << 14), (1 << 14) + 1, (2, max(1, slots - 1), pairs))
    items = angle_items(cos, sin, slots)
    assert items.shape == (pairs, item_bytes(Destination.ANGLES, config(slots)))
    for pair, item in enumerate(items):
        for slot in range(slots):
            expected = (int(cos[slot, pair]), int(sin[slot, pair])) if slot < len(cos) else (0, 0)
            assert struct.unpack_from("<2h", item.tobytes(), 4 * slot) == expected


@given(st.integers(1, 200), st.sampled_from([2, 4, 8, 16, 32, 256]), st.sampled_from([4, 8, 16, 64]))
def test_a_table_ends_at_a_whole_beat(items: int, size: int, beat_bytes: int) -> None:
    beats, spare = beats_of(items, size, beat_bytes)
    assert (items + spare) * size == beats * beat_bytes
    assert 0 <= spare * size < max(beat_bytes, 1)
