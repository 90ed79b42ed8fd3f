"""Test what a decoder hands to a drafter that learns from the target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgedec.runtime.protocols import F32
from edgedec.runtime.sampling.likeliest import find_likeliest
from edgedec.runtime.sampling.target_top import TOP_IDS, TOP_K, TOP_PROBS, TOP_TAPS, likeliest_taps, top_taps


def row(values: Any) -> F32:
    return np.array(values, np.float32)


@pytest.mark.thorough
@given(weights=st.lists(st.integers(0, 5), min_size=1, max_size=40), k=st.integers(1, 12))
def test_the_likeliest_come_first_and_the_lower_id_of_equals(weights: list[int], k: int) -> None:
    best = sorted((-weight, token) for token, weight in enumerate(weights) if weight)[:k]
    taps = top_taps([row(weights)], logits=False, k=k)
    assert taps[TOP_IDS].shape == taps[TOP_PROBS].shape == (1, k)
    assert taps[TOP_IDS][0, : len(best)].tolist() == [token for _, token in best]
    assert taps[TOP_PROBS][0].tolist() == [-weight for weight, _ in best] + [0.0] * (k - len(best))


@given(logits=st.lists(st.integers(-20, 20), min_size=1, max_size=40), k=st.integers(1, 12))
def test_logits_become_shares_of_the_kept_ones(logits: list[int], k: int) -> None:
    whole = np.exp(row(logits) - max(logits))
    whole[row(logits) <= max(logits) - 9] = 0
    expected = top_taps([row(whole)], logits=False, k=k)
    taps = top_taps([row(logits)], logits=True, k=k)
    assert taps[TOP_IDS].tolist() == expected[TOP_IDS].tolist()
    assert taps[TOP_PROBS] == pytest.approx(expected[TOP_PROBS] / expected[TOP_PROBS].sum(), abs=1e-6)


@given(
    rows=hnp.arrays(
        np.float32, st.tuples(st.integers(1, 3), st.integers(1, 40)), elements=st.integers(-12, 12).map(float)
    ),
    more=st.integers(0, 5),
)
def test_taps_of_the_likeliest_tokens_are_those_of_whole_rows(rows: F32, more: int) -> None:
    top = find_likeliest(rows, TOP_K + more, rows.shape[1], log_sum=False)
    assert top is not None
    path = np.arange(len(rows), dtype=np.int32)[::-1]
    made, right = likeliest_taps(top, path), top_taps([rows[at] for at in path], logits=True)
    for name in TOP_TAPS:
        assert made[name].tobytes() == right[name].tobytes()


def test_each_node_has_a_row_and_invalid_logits_none() -> None:
    with np.errstate(invalid="raise"):
        rows = [row([0, 2.0, 1]), row([np.nan, 1, 2]), row([-np.inf, 0, -np.inf])]
        taps = top_taps(rows, logits=True, k=2)
    assert taps[TOP_IDS].dtype == taps[TOP_PROBS].dtype == np.float32
    assert taps[TOP_IDS].tolist() == [[1, 2], [0, 0], [1, 0]]
    assert taps[TOP_PROBS][1:].tolist() == [[0, 0], [1, 0]]
    assert top_taps([], logits=True)[TOP_IDS].shape == (0, 10)
    assert not top_taps([row([-np.inf] * 3)], logits=True)[TOP_PROBS].any()


def test_large_ids_survive_float32() -> None:
    logits = np.zeros(200_000, np.float32)
    logits[[199_999, 131_071]] = 20, 19
    assert top_taps([logits], logits=True)[TOP_IDS][0, :2].tolist() == [199_999, 131_071]
