"""Test which rows a state keeps, against a list of all rows that later queries may see."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import BundleError, UnsupportedError
from edgedec.families import build_graph
from edgedec.graph.capacity import Capacity, reach
from edgedec.graph.graph import KvState
from edgedec.onnx.kv_cache import cache_layout
from tests.support.make_tiny import CONFIG

capacities = st.builds(
    Capacity,
    window=st.none() | st.integers(1, 40),
    sinks=st.integers(0, 20),
    slack=st.integers(0, 9),
    unit=st.sampled_from([1, 4, 16]),
)


def visible(capacity: Capacity, length: int) -> set[int]:
    """Return the committed rows that a query at position ``length`` or above may see."""
    rows = range(length)
    if capacity.window is None:
        return set(rows)
    return {row for row in rows if row > length - capacity.window or row < capacity.sinks}


def kept(capacity: Capacity, length: int, floor: int) -> set[int]:
    return {row for row in range(length) if row < capacity.head or row >= floor}


@given(capacity=capacities, length=st.integers(0, 120))
def test_every_row_that_a_window_shows_is_kept(capacity: Capacity, length: int) -> None:
    assert visible(capacity, length) <= kept(capacity, length, capacity.floor(length))


@given(capacity=capacities, length=st.integers(0, 120), back=st.integers(0, 120))
def test_a_sequence_can_go_back_as_far_as_its_rows_are_there(capacity: Capacity, length: int, back: int) -> None:
    """Going on after n rows needs the rows that a query sees then, and none more; at least the slack is always there."""
    floor, n = capacity.floor(length), max(0, length - back)
    there = visible(capacity, n) <= kept(capacity, n, floor)
    result = reach(n, [(capacity, floor)])
    assert visible(capacity, result) <= kept(capacity, result, floor)
    if back <= capacity.slack:
        assert result == n
    if capacity.window != 1:  # such a window shows no committed row
        assert (result == n) == there
    assert result in (n, min(n, capacity.head))


@given(capacity=capacities, length=st.integers(0, 120), rows=st.integers(0, 9), positions=st.integers(1, 130))
def test_no_sequence_has_more_rows_than_its_capacity(
    capacity: Capacity, length: int, rows: int, positions: int
) -> None:
    end = min(positions, length + min(rows, capacity.slack))
    length = min(length, end)
    unit = capacity.unit
    blocks = {row // unit for row in kept(capacity, length, capacity.floor(length)) | set(range(length, end))}
    assert len(blocks) * unit <= capacity.rows(positions)


def test_the_formula_of_a_ring() -> None:
    """Check sinks + window - 1 + twice the slack, and with blocks of 16 the part of the first block that is not needed."""
    assert Capacity(window=512, sinks=4, slack=32).rows(8192) == 4 + 511 + 64
    assert Capacity(window=512, sinks=4, slack=32, unit=16).rows(8192) == 16 + 592
    assert Capacity(window=512, slack=32).rows(100) == 100
    assert Capacity(window=512, slack=32).rows(574) == 574
    assert Capacity(window=512, slack=32).rows(576) == 575


def test_going_back_is_bounded_by_the_worst_state() -> None:
    near, far = Capacity(window=4, sinks=2, slack=1), Capacity(window=9, sinks=3, slack=1)
    there = [(near, near.floor(20)), (far, far.floor(20))]
    assert [reach(n, there) for n in (20, 19, 18, 3, 2, 1)] == [20, 19, 2, 2, 2, 1]
    assert reach(18, [(Capacity(), 0), *there[:1]]) == 2
    assert reach(18, [(Capacity(), 0)]) == 18


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "state a.kv: a window must have at least 1 position, not 0"),
        ({"window": -3}, "state a.kv: a window must have at least 1 position, not -3"),
        ({"window": 3, "sinks": -1}, "state a.kv: a window must have 0 or more sinks, not -1"),
        ({"capacity": "ring"}, "state a.kv: a ring must have a window"),
    ],
)
def test_states_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        KvState(name="a.kv", kv_heads=1, head_dim=2, **options)


@pytest.mark.parametrize("window", [0, -1, 2.5, "8", 1 << 40])
def test_a_bundle_with_such_a_window_is_refused(window: object) -> None:
    with pytest.raises(BundleError, match=r"configuration: sliding_window must be an integer in 1\.\.16777216, not"):
        build_graph({**CONFIG, "model_type": "mistral", "attention_bias": False, "sliding_window": window})


def state(window: int | None, *, ring: bool = True) -> KvState:
    return KvState(
        name="kv", kv_heads=1, head_dim=8, bits=16, window=window, capacity="ring" if ring and window else "full"
    )


def test_states_that_keep_the_same_rows_have_one_kind() -> None:
    states = {"a": state(None), "b": state(20), "c": state(40), "d": state(20), "e": state(20, ring=False)}
    layout = cache_layout(states, 320, positions=320, slack=8)
    assert list(layout.kind_of.values()) == [0, 1, 2, 1, 0]
    assert layout.blocks == (20, 4, 5)  # rings of 19 + 16 + 15 and 39 + 16 + 15 rows, in whole blocks
    assert layout.ring_bytes == (2 * 4 + 5) * 16 * 32
    assert layout.nbytes == layout.ring_bytes + 2 * 20 * 16 * 32
    assert layout.numbers()[:, 2:].tolist() == [
        [320, 16, 0, 0, 0, 0, 0, 0],
        [64, 16, 10240, 1, 0, 0, 0, 0],
        [80, 16, 12288, 2, 0, 0, 0, 0],
        [64, 16, 14848, 1, 0, 0, 0, 0],
        [320, 16, 16896, 0, 0, 0, 0, 0],
    ]


def test_a_ring_has_room_for_each_sequence_that_the_rows_are_for() -> None:
    assert cache_layout({"a": state(20)}, 4 * (320 + 40), positions=320, slack=8).blocks == (4 * 4,)
    assert cache_layout({"a": state(20)}, 100, positions=320, slack=8).blocks == (4,)
    assert cache_layout({"a": state(20)}, 40, positions=320, slack=8).blocks == (3,)


@pytest.mark.parametrize("window", [290, 320, 4096])
def test_a_window_that_keeps_as_many_rows_as_the_context_is_no_ring(window: int) -> None:
    layout = cache_layout({"a": state(window), "b": state(None)}, 320, positions=320, slack=8)
    assert (layout.blocks, layout.ring_bytes) == ((20,), 0)
