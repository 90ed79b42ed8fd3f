"""Test the table of contexts: a dictionary while there is room, and never larger than its room."""

from __future__ import annotations

import inspect
import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime import loop
from edgedec.runtime.drafters._table import ContextTable, context_key


@pytest.mark.skipif(loop.load() is None, reason="the loop's library was not built (no C++ compiler)")
@given(context=st.lists(st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-1, 0, 2**31 - 1]), max_size=9))
def test_both_loops_have_the_same_key_of_a_context(context: list[int]) -> None:
    library, ids = loop.load(), np.array(context, np.int32)
    assert library is not None
    key = library.function("edgedec_loop_context_key")(ids.ctypes.data, len(ids))
    assert context_key(tuple(context)) == key
    assert 1 <= key < 1 << 63


def test_keys_are_those_of_the_definition_and_fill_the_sets() -> None:
    assert [context_key(context) for context in ((5,), (-1, 2))] == [5201319483108303315, 4984195755077590609]
    contexts = [context for size in range(5) for context in itertools.product(range(-2, 5), repeat=size)]
    assert len(set(map(context_key, contexts))) == len(contexts)
    places = [context_key((first << 10, second << 10)) % 64 for first in range(32) for second in range(32)]
    assert max(places.count(place) for place in range(64)) < 40  # the average is 16


@given(contexts=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=60))
def test_a_context_keeps_its_row(contexts: list[tuple[int, int]]) -> None:
    table, rows = ContextTable(1024, 3), dict[tuple[int, int], int]()
    for context in contexts:
        assert table.find(context) == rows.get(context, -1)
        row = table.claim(context)
        assert rows.setdefault(context, row) == row
        if not table.counts[row]:
            assert table.ids[row].tolist() == [-1] * 3
            assert not table.values[row].any()
        table.ids[row], table.values[row], table.counts[row] = 5, 1.0, table.counts[row] + 1
    assert len(set(rows.values())) == len(rows)
    assert all(table.counts[row] == contexts.count(context) for context, row in rows.items())


def test_the_least_recently_used_context_is_replaced() -> None:
    table = ContextTable(1, 2)  # one set of eight
    for token in range(8):
        row = table.claim((token,))
        table.ids[row], table.values[row], table.counts[row] = token, 1.0, 7
    table.claim((0,))
    row = table.claim((8,))
    assert table.find((1,)) == -1
    assert table.find((0,)) >= 0
    assert (table.ids[row].tolist(), table.values[row].tolist(), table.counts[row]) == ([-1, -1], [0.0, 0.0], 0)


def _bytes_of_the_table() -> int:
    """Return the bytes that code of the table's module holds. Other threads and caches allocate elsewhere."""
    of_the_module = tracemalloc.Filter(inclusive=True, filename_pattern=inspect.getfile(ContextTable))
    snapshot = tracemalloc.take_snapshot().filter_traces([of_the_module])
    return sum(trace.size for trace in snapshot.traces)


@pytest.mark.thorough
def test_the_table_has_its_stated_bytes_and_does_not_grow() -> None:
    stated = ContextTable.table_bytes(1000, 12)
    tracemalloc.start()
    try:
        table = ContextTable(1000, 12)
        allocated = _bytes_of_the_table()
        for token in range(20_000):
            row = table.claim((token, token))
            table.values[row] = 1
        final = _bytes_of_the_table()
    finally:
        tracemalloc.stop()
    assert stated <= allocated <= stated + 2048
    assert final <= allocated + 1024
    assert np.count_nonzero(table.values) == table.values.size
