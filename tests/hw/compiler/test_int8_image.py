from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import BundleError
from edgedec.hw.compiler.int8_image import Int8Layout, pack, unpack

Content = tuple[Int8Layout, Any]


@st.composite
def contents(draw: st.DrawFn) -> Content:
    beat_bytes = draw(st.sampled_from([4, 8, 16, 64]))
    layout = Int8Layout(
        beat_bytes=beat_bytes,
        tile_words=draw(st.integers(1, 5)),
        rows=draw(st.integers(1, 40)),
        columns=draw(st.integers(1, 4 * beat_bytes)),
    )
    return filled(layout, draw(st.integers(0, 1 << 20)))


def filled(layout: Int8Layout, seed: int = 0) -> Content:
    rng = np.random.default_rng(seed)
    return layout, rng.integers(-128, 128, (layout.rows, layout.columns)).astype(np.int8)


def obvious(layout: Int8Layout, codes: Any) -> list[list[int]]:
    """Pack with the loops of the matrix path's docstring, one element at a time."""
    width, beats = layout.beat_bytes, []

    def byte(row: int, column: int) -> int:
        return int(codes[row, column]) % 256 if row < layout.rows and column < layout.columns else 0

    for tile in range(0, layout.words, layout.tile_words):
        words = range(tile, min(tile + layout.tile_words, layout.words))
        for block in range(layout.blocks):
            for word in words:
                beats += [[byte(5 * word + row, block * width + c) for c in range(width)] for row in range(5)]
    return beats


@given(contents())
def test_content_survives_a_round_trip(content: Content) -> None:
    layout, codes = content
    image = pack(layout, codes)
    assert image.dtype == np.uint8
    assert image.shape == (layout.beats, layout.beat_bytes)
    unpacked = unpack(layout, image)
    assert unpacked.dtype == np.int8
    assert np.array_equal(unpacked, codes)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (23, 29), (15, 16), (31, 40)])
def test_beats_have_their_order(rows: int, columns: int) -> None:
    content = filled(Int8Layout(beat_bytes=8, tile_words=3, rows=rows, columns=columns))
    assert pack(*content).tolist() == obvious(*content)


@given(contents(), st.data())
def test_any_changed_byte_is_detected(content: Content, data: st.DataObject) -> None:
    layout, codes = content
    image = pack(layout, codes)
    at = data.draw(st.integers(0, layout.beats - 1)), data.draw(st.integers(0, layout.beat_bytes - 1))
    image[at] = (int(image[at]) + data.draw(st.integers(1, 255))) % 256
    try:
        unpacked = unpack(layout, image)
    except BundleError:
        return
    assert not np.array_equal(unpacked, codes)


def test_damaged_images_are_refused() -> None:
    layout, codes = filled(Int8Layout(beat_bytes=8, tile_words=1, rows=7, columns=13))
    image = pack(layout, codes)
    with pytest.raises(BundleError, match="an int8 image of 19x8 bytes; its matrix needs 20x8"):
        unpack(layout, image[:-1])
    for at in ((12, 0), (19, 4), (5, 5), (9, 7)):  # row 7, row 9, column 13, column 15
        damaged = image.copy()
        damaged[at] += 1
        with pytest.raises(BundleError, match="something behind its matrix's rows or columns"):
            unpack(layout, damaged)


def test_wrong_content_is_refused() -> None:
    layout, codes = filled(Int8Layout(beat_bytes=8, tile_words=2, rows=7, columns=13))
    with pytest.raises(ValueError, match=r"codes must be int8 \(7, 13\), not int8 \(7, 12\)"):
        pack(layout, codes[:, 1:])
    with pytest.raises(ValueError, match=r"codes must be int8 \(7, 13\), not int64 \(7, 13\)"):
        pack(layout, codes.astype(np.int64))
    with pytest.raises(ValueError, match="tile_words must be at least 1, not 0"):
        Int8Layout(beat_bytes=8, tile_words=0, rows=1, columns=13)
