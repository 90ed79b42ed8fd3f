"""Test the numbers of a selection of keys, and the definition of the choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import UnsupportedError
from edgedec.graph.graph import KvState
from edgedec.graph.selection import Selection
from edgedec.reference.float_profile.selection import chosen, importance_codes, label_codes

USUAL: dict[str, Any] = {"keys": 9, "sinks": 2, "recent": 3, "channels": ((1, 4), (0, 2)), "steps": ((0.1, 0.2),) * 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": 0}, "keys of a selection must be 1 to 16777216, not 0; calibrate again"),
        ({"keys": True}, "keys of a selection must be 1 to 16777216, not True"),
        ({"keys": 5}, "a selection of 5 keys leaves none to choose beside 2 sinks and 3 recent ones"),
        ({"sinks": -1}, "sinks of a selection must be 0 to"),
        ({"recent": 0}, "recent of a selection must be 1 to"),
        ({"bits": 2}, "bits of labels must be 8 or 4, not 2"),
        ({"share": 1.5}, r"share of a selection must be 0 to 1, not 1\.5"),
        ({"share": float("nan")}, "share of a selection must be 0 to 1, not nan"),
        ({"channels": ((1, 4), (0,))}, "must have as many numbers for each key/value head"),
        ({"channels": ((1, 4),)}, "must have as many numbers for each key/value head"),
        ({"channels": ((), ()), "steps": ((), ())}, "must have as many numbers for each key/value head, at least one"),
        ({"channels": ((1, 1), (0, 2))}, r"channels of a label must be different numbers, not \[1, 1\]"),
        ({"channels": ((1, -4), (0, 2))}, "channels of a label must be different numbers"),
        ({"steps": ((0.1, 0.0), (0.1, 0.2))}, "steps of a label must be positive"),
        ({"steps": ((0.1, float("inf")), (0.1, 0.2))}, "steps of a label must be positive"),
        ({"kept": 5}, "kept keys of a selection must be 0 to 4, those that are chosen, not 5"),
        ({"kept": 2}, "importance of a selection must have a list for each key/value head if keys are kept"),
        ({"importance": ((1.0,), (1.0,))}, "importance of a selection must have a list for each key/value head"),
        ({"kept": 2, "importance": ((1.0,), (float("nan"),))}, "importance of a selection must be finite numbers"),
    ],
)
def test_numbers_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Selection(**USUAL | changes)


HEADS: dict[str, Any] = {"name": "kv", "kv_heads": 2, "head_dim": 8, "selection": Selection(**USUAL)}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"kv_heads": 3}, "state kv: has 3 key/value heads, and the selection is for 2"),
        ({"head_dim": 4}, "state kv: there is no channel 4; its heads have 4"),
        ({"head_dim": 1}, "state kv: a label cannot have 2 channels, its heads have 1"),
        (
            {"selection": Selection(**USUAL, kept=2, importance=((1.0,) * 8,) * 2)},
            "state kv: importance must have 9 numbers for each head, not 8",
        ),
        ({"window": 5}, "state kv: keys can be chosen only where all positions are visible"),
    ],
)
def test_a_selection_of_other_heads_is_refused(state: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        KvState(**HEADS | state)


def test_the_count_is_the_larger_of_the_number_and_the_share() -> None:
    selection = Selection(**USUAL, share=0.25)
    assert [selection.count(visible) for visible in (0, 8, 36, 40, 43, 44)] == [9, 9, 9, 10, 10, 11]
    assert [Selection(**USUAL).largest(positions) for positions in (4, 9, 4000)] == [4, 9, 9]
    assert Selection(**USUAL).label_bytes == 4
    five = {"channels": ((0, 1, 2, 3, 4),), "steps": ((0.1,) * 5,)}
    assert [Selection(**USUAL | five | {"bits": bits}).label_bytes for bits in (8, 4)] == [8, 4]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 999), visible=st.integers(1, 40), levels=st.integers(1, 4))
def test_the_choice_is_that_of_a_sort(seed: int, visible: int, levels: int) -> None:
    """Compare with a plain sort of few different scores, so that many are equal."""
    rng, selection = np.random.default_rng(seed), Selection(**USUAL)
    keys = rng.integers(-levels, levels + 1, (visible, 8)).astype(np.float32)
    query = rng.normal(size=8).astype(np.float32)
    own = chosen(selection, 1, query, keys)
    codes = label_codes(selection, 1, keys)
    first, second = query[0] * np.float32(0.1), query[2] * np.float32(0.2)
    scores = [float(np.float32(first * one) + np.float32(second * other)) for one, other in codes]
    middle = sorted(range(2, max(2, visible - 3)), key=lambda at: (-scores[at], at))[:4]
    expected = range(visible) if visible <= 9 else [0, 1, *sorted(middle), *range(visible - 3, visible)]
    assert own.tolist() == list(expected)


def test_a_score_that_is_no_number_comes_last() -> None:
    keys = np.ones((12, 8), np.float32)
    keys[:, 1] = np.inf  # a code of 127, times an infinite weight of the query, is infinite; one of 0 is NaN
    keys[4, 1] = 0
    selection = Selection(**USUAL | {"keys": 11})
    query = np.full(8, np.inf, np.float32)
    with np.errstate(invalid="ignore"):
        assert chosen(selection, 0, query, keys).tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    assert label_codes(selection, 0, np.full((1, 8), np.nan, np.float32)).tolist() == [[0, 0]]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), visible=st.integers(12, 60))
def test_important_keys_are_chosen_first_and_change_one_at_a_time(seed: int, visible: int) -> None:
    """Two queries have the same important keys, and with a further key one of them changes at most."""
    rng = np.random.default_rng(seed)
    weights = (0.0, *map(float, rng.normal(size=8)))
    selection = Selection(**USUAL, kept=3, importance=(weights, weights))
    keys = rng.normal(size=(visible, 8)).astype(np.float32)
    codes = importance_codes(selection, 0, keys)
    own = []
    for count in (visible, visible - 1):
        middle = sorted(range(2, count - 3), key=lambda at: (-codes[at], at))[:3]
        for _ in range(2):
            query = rng.normal(size=8).astype(np.float32)
            made = chosen(selection, 0, query, keys[:count]).tolist()
            assert len(made) == 9
            assert set(middle) <= set(made)
            others = Selection(**USUAL | {"keys": 6}, kept=0)
            scored = [at for at in chosen(others, 0, query, keys[:count]).tolist() if 2 <= at < count - 3]
            assert set(scored) <= set(made)
        own.append(set(middle))
    assert len(own[0] - own[1]) <= 1
