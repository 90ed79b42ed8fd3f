"""Test the selection of the likeliest tokens of whole rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgedec.runtime.protocols import F32
from edgedec.runtime.sampling.likeliest import find_likeliest, largest_ids
from edgedec.runtime.sampling.log_sum import log_sum

VALUES = st.sampled_from([-np.inf, -2.0, -0.0, 0.0, 1.0, 3.0])  # many equal ones
ROWS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=20), elements=VALUES)


@given(rows=ROWS, k=st.integers(1, 25), padding=st.integers(0, 5), asks=st.booleans())
def test_tokens_are_in_order_and_padding_is_left_out(rows: F32, k: int, padding: int, asks: bool) -> None:
    ids = rows.shape[1]
    padded = np.concatenate([rows, np.full((len(rows), padding), 9, np.float32)], axis=1)
    found = find_likeliest(padded, k, ids, log_sum=asks)
    assert found is not None
    for number, row in enumerate(rows.tolist()):
        best = sorted(range(ids), key=lambda at: (-row[at], at))[:k]
        assert found.ids[number].tolist() == best
        assert found.logits[number].tolist() == [row[at] for at in best]
        one = found.row(number)
        assert one.ids.tolist() == best
        assert (one.log_sum is not None) == asks
        if one.log_sum is not None:
            np.testing.assert_equal(one.log_sum, log_sum(rows[number]))
    assert found.ids.dtype == np.int32
    assert found.logits.dtype == np.float32


def test_nothing_is_found_unless_it_is_asked_for() -> None:
    assert find_likeliest(np.zeros((2, 5), np.float32), 0, 5, log_sum=False) is None
    none = find_likeliest(np.zeros((0, 5), np.float32), 3, 5, log_sum=True)
    assert none is not None
    assert none.ids.shape == none.logits.shape == (0, 3)
    assert none.log_sum is not None
    assert none.log_sum.shape == (0,)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_nan_comes_first(k: int) -> None:
    row = np.array([np.nan, 1, 3, np.nan], np.float32)
    assert largest_ids(row, k).tolist() == [0, 3, 2, 1][:k]
