from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import BundleError, UnsupportedError
from edgedec.hw.compiler.ternary_image import TernaryLayout, pack, unpack

Content = tuple[TernaryLayout, Any, Any]


@st.composite
def contents(draw: st.DrawFn) -> Content:
    beat_bytes = draw(st.sampled_from([5, 8, 16, 64]))
    layout = TernaryLayout(
        beat_bytes=beat_bytes,
        tile_words=draw(st.integers(1, 5)),
        planes=draw(st.integers(1, 3)),
        rows=draw(st.integers(1, 40)),
        columns=draw(st.integers(1, 4 * beat_bytes)),
        group_size=beat_bytes * draw(st.integers(0, 3)),
    )
    return filled(layout, draw(st.integers(0, 1 << 20)))


def filled(layout: TernaryLayout, seed: int = 0) -> Content:
    rng = np.random.default_rng(seed)
    trits = rng.integers(-1, 2, (layout.planes, layout.rows, layout.columns)).astype(np.int8)
    shape = (layout.planes, layout.rows, layout.groups)
    return layout, trits, rng.integers(0, 256, shape).astype(np.uint8) if layout.group_size else None


def obvious(layout: TernaryLayout, trits: Any, mantissas: Any) -> list[list[int]]:
    """Pack with the loops of the matrix path's docstring, one element at a time."""
    width, beats = layout.beat_bytes, []

    def trit(plane: int, row: int, column: int) -> int:
        inside = row < layout.rows and column < layout.columns
        return int(trits[plane, row, column]) if inside else 0

    def mantissa(plane: int, row: int, group: int) -> int:
        return int(mantissas[plane, row, group]) if row < layout.rows else 0

    for tile in range(0, layout.words, layout.tile_words):
        words = range(tile, min(tile + layout.tile_words, layout.words))
        for plane in range(layout.planes):
            for block in range(layout.blocks):
                if mantissas is not None and block * width % layout.group_size == 0:
                    group = block * width // layout.group_size
                    per = width // 5
                    for first in range(words.start, words.stop, per):
                        part = range(first, min(first + per, words.stop))
                        word_mantissas = [mantissa(plane, 5 * word + row, group) for word in part for row in range(5)]
                        beats.append(word_mantissas + [0] * (width - len(word_mantissas)))
                for word in words:
                    beats.append(
                        [
                            sum((trit(plane, 5 * word + row, block * width + c) + 1) * 3**row for row in range(5))
                            for c in range(width)
                        ]
                    )
    return beats


def same(actual: Any, expected: Any) -> bool:
    return actual is None if expected is None else np.array_equal(actual, expected)


@given(contents())
def test_content_survives_a_round_trip(content: Content) -> None:
    layout, trits, mantissas = content
    image = pack(layout, trits, mantissas)
    assert image.dtype == np.uint8
    assert image.shape == (layout.beats, layout.beat_bytes)
    unpacked, scales = unpack(layout, image)
    assert unpacked.dtype == np.int8
    assert np.array_equal(unpacked, trits)
    assert same(scales, mantissas)


@pytest.mark.parametrize("group_size", [0, 8, 16])
@pytest.mark.parametrize(("planes", "rows", "columns"), [(1, 1, 1), (2, 23, 29), (3, 15, 16), (1, 31, 40)])
def test_beats_have_their_order(planes: int, rows: int, columns: int, group_size: int) -> None:
    layout = TernaryLayout(beat_bytes=8, tile_words=3, planes=planes, rows=rows, columns=columns, group_size=group_size)
    content = filled(layout)
    assert pack(*content).tolist() == obvious(*content)


@given(contents(), st.data())
def test_any_changed_byte_is_detected(content: Content, data: st.DataObject) -> None:
    layout, trits, mantissas = content
    image = pack(layout, trits, mantissas)
    at = data.draw(st.integers(0, layout.beats - 1)), data.draw(st.integers(0, layout.beat_bytes - 1))
    image[at] = (int(image[at]) + data.draw(st.integers(1, 255))) % 256
    try:
        unpacked, scales = unpack(layout, image)
    except BundleError:
        return
    assert not (np.array_equal(unpacked, trits) and same(scales, mantissas))


def test_a_full_size_matrix_has_no_holes() -> None:
    layout = TernaryLayout(beat_bytes=64, tile_words=256, planes=1, rows=1280, columns=1536)
    assert layout.beats == 1280 // 5 * 1536 // 64
    grouped = TernaryLayout(beat_bytes=64, tile_words=256, planes=1, rows=1280, columns=1536, group_size=128)
    assert grouped.beats == layout.beats + 12 * 22


def test_damaged_images_are_refused() -> None:
    layout, trits, mantissas = filled(
        TernaryLayout(beat_bytes=8, tile_words=2, planes=1, rows=7, columns=13, group_size=8)
    )
    image = pack(layout, trits, mantissas)
    with pytest.raises(BundleError, match="a ternary image of 7x8 bytes; its matrix needs 8x8"):
        unpack(layout, image[:-1])
    attacks = [
        ((2, 0), 243, "has the byte 243"),
        ((0, 5), 1, "something behind a group's mantissas"),
        ((1, 2), 1, "something behind its matrix's rows"),  # row 7
        ((6, 7), 0, "something behind its matrix's rows or columns"),
    ]
    for at, byte, message in attacks:
        damaged = image.copy()
        damaged[at] = byte
        with pytest.raises(BundleError, match=message):
            unpack(layout, damaged)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 32}, "groups of 32 columns end within a beat of 64"),
        ({"beat_bytes": 1, "group_size": -1}, "groups of -1 columns"),
        (
            {"beat_bytes": 4, "group_size": 64},
            "a beat of 4 bytes holds no 5 mantissas; choose beat_bytes of at least 8",
        ),
    ],
)
def test_unsupported_matrices_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        TernaryLayout(**{"beat_bytes": 64, "tile_words": 2, "planes": 1, "rows": 5, "columns": 64, **changes})


@given(contents())
def test_beats_are_the_sum_over_its_parts(content: Content) -> None:
    layout = content[0]
    assert layout.beats == sum(len(part) for _, part in layout._parts())


def test_wrong_content_is_refused() -> None:
    layout, trits, mantissas = filled(TernaryLayout(beat_bytes=8, tile_words=2, planes=1, rows=7, columns=13))
    assert mantissas is None
    with pytest.raises(ValueError, match=r"trits must be int8 \(1, 7, 13\), not int8 \(1, 7, 12\)"):
        pack(layout, trits[:, :, 1:])
    with pytest.raises(ValueError, match=r"trits must be -1, 0 or 1, not 2\.\.2"):
        pack(layout, np.full_like(trits, 2))
    with pytest.raises(ValueError, match="mantissas must be None with groups of 0"):
        pack(layout, trits, np.zeros((1, 7, 2), np.uint8))
    with pytest.raises(ValueError, match="rows must be at least 1, not 0"):
        TernaryLayout(beat_bytes=8, tile_words=2, planes=1, rows=0, columns=13)
