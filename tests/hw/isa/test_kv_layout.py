from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.hw.isa.kv_layout import CacheRows, KvLayout, widest_chunk


@st.composite
def layouts(draw: st.DrawFn) -> KvLayout:
    beat_bytes = draw(st.sampled_from([1, 2, 4, 8, 16, 64]))
    chunk = draw(st.sampled_from([size for size in (1, 2, 4, 8, 16) if size <= beat_bytes]))
    return KvLayout(beat_bytes=beat_bytes, head_dim=chunk * draw(st.integers(1, 9)), chunk=chunk)


@given(layouts(), st.integers(0, 40), st.integers(-128, 127))
def test_every_byte_has_the_place_of_the_docstring(layout: KvLayout, count: int, fill: int) -> None:
    codes = np.random.default_rng(count).integers(-128, 128, (count, layout.head_dim)).astype(np.int8)
    beats = layout.pack(codes, fill).view(np.int8)
    assert beats.shape == (layout.beats(count), layout.beat_bytes)
    assert layout.groups(count) == sum(1 for position in range(count) if position % layout.positions == 0)
    assert (layout.positions * layout.chunk, layout.chunks * layout.chunk) == (layout.beat_bytes, layout.head_dim)
    padded = layout.groups(count) * layout.positions
    for position in range(padded):
        group, i = divmod(position, layout.positions)
        for element in range(layout.head_dim):
            c, d = divmod(element, layout.chunk)
            actual = beats[group * layout.chunks + c, i * layout.chunk + d]
            assert actual == (codes[position, element] if position < count else fill)


def test_a_run_is_padded_with_zeros() -> None:
    layout = KvLayout(beat_bytes=4, head_dim=1, chunk=1)
    assert layout.pack(np.array([[5]], np.int8)).tolist() == [[5, 0, 0, 0]]


@pytest.mark.parametrize(
    ("beat_bytes", "head_dim", "limit", "chunk"),
    [
        (64, 96, 16, 16),
        (64, 96, 64, 32),
        (64, 10, 16, 2),
        (64, 7, 16, 1),
        (8, 64, 16, 8),
        (1, 64, 16, 1),
        (16, 16, 4, 4),
    ],
)
def test_the_widest_chunk_divides_the_head(beat_bytes: int, head_dim: int, limit: int, chunk: int) -> None:
    assert widest_chunk(beat_bytes, head_dim, limit) == chunk
    if limit == 16:
        assert widest_chunk(beat_bytes, head_dim) == chunk
    KvLayout(beat_bytes=beat_bytes, head_dim=head_dim, chunk=chunk)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"head_dim": 0}, "head_dim must be an integer from 1 to 2048, not 0"),
        ({"beat_bytes": 0}, "beat_bytes must be an integer from 1 to 64, not 0"),
        ({"beat_bytes": 24}, "beat_bytes must be a power of two, not 24"),
        ({"chunk": 3}, "chunk must be a power of two that divides 12, not 3"),
        ({"chunk": 8}, "chunk must be a power of two that divides 12, not 8"),
        ({"chunk": 32}, "chunk must be an integer from 1 to 16, not 32"),
    ],
)
def test_wrong_parameters_are_refused(members: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        KvLayout(**{"beat_bytes": 16, "head_dim": 12, "chunk": 4, **members})


@given(layouts(), st.integers(0, 600), st.integers(2, 40), st.integers(1, 40))
def test_a_pass_reads_the_rows_that_its_window_shows(
    layout: KvLayout, committed: int, window: int, others: int
) -> None:
    """Find each row that is read where the row of its position was written last, and no row that nothing sees but some
    of the first group.
    """
    rows = layout.groups(window + layout.positions - 1 + others) * layout.positions
    ring = CacheRows(layout=layout, rows=rows, window=window)
    first = ring.first(committed)
    places = [
        at // layout.chunks * layout.positions + i
        for start, beats in ring.ranges(committed)
        for at in range(start, start + beats, layout.chunks)
        for i in range(layout.positions)
    ]
    assert places[: committed - first] == [position % rows for position in range(first, committed)]
    assert 0 <= len(places) - (committed - first) < layout.positions
    assert ring.beats(committed) * layout.positions == len(places) * layout.chunks
    oldest = max(0, committed + 1 - window)  # first position that the next one sees
    assert first <= oldest < first + layout.positions or committed == 0
    assert len(ring.ranges(committed)) <= 2
    assert ring.place(committed) == committed % rows


def test_other_layers_are_read_from_their_beginning() -> None:
    layout = KvLayout(beat_bytes=8, head_dim=8, chunk=4)
    rows = CacheRows(layout=layout, rows=20)
    assert rows.run == layout.beats(20)
    assert (rows.ranges(0), rows.ranges(5)) == ((), ((0, 6),))
    assert (rows.first(19), rows.place(19)) == (0, 19)


def test_a_ring_may_have_no_more_rows_than_its_window() -> None:
    ring = CacheRows(layout=KvLayout(beat_bytes=8, head_dim=8, chunk=4), rows=4, window=4)
    assert (ring.run, ring.ranges(3), ring.place(5)) == (4, ((0, 4),), 1)


@pytest.mark.parametrize(("rows", "window"), [(5, 4), (4, 5)])
def test_an_impossible_ring_is_refused(rows: int, window: int) -> None:
    layout = KvLayout(beat_bytes=8, head_dim=8, chunk=4)
    with pytest.raises(ValueError, match=f"^a ring must have whole groups of 2 rows, at least {window}, not {rows}$"):
        CacheRows(layout=layout, rows=rows, window=window)
