from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.vector.residual_path import ResidualPath, load_item_bytes
from tests.hw.support.bench_streams import run

MOST = (1 << 26) - 1


def as_items(x: np.ndarray[Any, Any]) -> list[int]:
    """Convert [elements, slots] to what lies in memory."""
    return [sum((int(v) & 0xFFFFFFFF) << (32 * i) for i, v in enumerate(element)) for element in x]


def as_words(x: np.ndarray[Any, Any], last: int | None = -1) -> list[dict[str, Any]]:
    end = len(x) - 1 if last == -1 else last
    return [{"values": [element.tolist()], "last": i == end} for i, element in enumerate(x)]


def test_items_have_their_size() -> None:
    assert [load_item_bytes(slots) for slots in (1, 2, 3, 4, 8)] == [4, 8, 16, 16, 32]


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize("idle", [0.0, 0.4])
@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize(("count", "split"), [(7, 4), (33, 32), (8, 1), (2, 1)])
def test_loads_and_adds_saturate(count: int, split: int, slots: int, idle: float, stall: float) -> None:
    rng = np.random.default_rng(count)
    x, a, b, c = (rng.integers(-MOST, MOST + 1, (count, slots)) for _ in range(4))
    first = np.clip(x + a, -MOST, MOST)  # not through onward
    second = np.clip(first + b, -MOST, MOST)  # in two additions
    third = np.clip(second + c, -MOST, MOST)
    collected = run(
        ResidualPath(slots=slots, depth=count),
        {
            "loads": [count],
            "items": as_items(x),
            "additions": [
                {"start": 0, "elements": count, "more": 0, "onward": 0},
                {"start": 0, "elements": split, "more": 1, "onward": 1},
                {"start": split, "elements": count - split, "more": 0, "onward": 1},
                {"start": 0, "elements": count, "more": 0, "onward": 1},
            ],
            "input": as_words(a, None) + as_words(b, None) + as_words(c, count // 2),
        },
        {"output": 3 * count},
        idle={"input": idle, "items": idle, "additions": idle},
        stall=stall,
    )
    assert collected["output"] == as_words(x) + as_words(second) + as_words(third)


def test_a_vector_of_one_element_and_a_longer_one_are_independent() -> None:
    rng = np.random.default_rng(2)
    single, added, longer = (rng.integers(-MOST, MOST + 1, (n, 2)) for n in (1, 1, 6))
    zeros = np.zeros_like(longer)
    parts: dict[str, list[Any]] = {
        "loads": [1, 6],  # the loads come first
        "items": as_items(single) + as_items(longer),
        "additions": [
            {"start": 0, "elements": 1, "more": 1, "onward": 0},
            {"start": 1, "elements": 5, "more": 0, "onward": 0},
            {"start": 0, "elements": 6, "more": 0, "onward": 1},
        ],
        "input": as_words(added) + as_words(zeros[1:]) + as_words(zeros),
    }
    outputs = run(ResidualPath(slots=2, depth=6), parts, {"output": 13})["output"]
    summed = longer.copy()
    summed[:1] = np.clip(longer[:1] + added, -MOST, MOST)
    assert outputs == as_words(single) + as_words(longer) + as_words(summed)


@pytest.mark.parametrize("slots", [2, 8])
def test_bits_past_the_slots_are_ignored(slots: int) -> None:
    """Fill the bits above s27 of a loaded item's words, and all bits past the last slot, with noise."""
    rng = np.random.default_rng(slots)
    x = rng.integers(-MOST, MOST + 1, (4, slots))
    noise = [item ^ sum(0x1F << 27 + 32 * slot for slot in range(slots)) for item in as_items(x)]
    outputs = run(ResidualPath(slots=slots, depth=4), {"loads": [4], "items": noise}, {"output": 4})["output"]
    assert outputs == as_words(x)


def test_an_element_takes_a_cycle_and_latency_is_as_documented() -> None:
    x, cycles = np.arange(40).reshape(20, 2), dict[str, list[int]]()
    parts: dict[str, list[Any]] = {
        "loads": [20],
        "items": as_items(x),
        "additions": [{"start": 0, "elements": 20, "more": 0, "onward": 1}],
        "input": as_words(x),
    }
    outputs = run(ResidualPath(slots=2, depth=20), parts, {"output": 40}, cycles=cycles)["output"]
    assert outputs == as_words(x) + as_words(2 * x)
    output_cycles = cycles["output"]
    assert [output_cycles[19] - output_cycles[0], output_cycles[39] - output_cycles[20]] == [19, 19]
    assert output_cycles[20] - cycles["additions"][0] == 6
    assert output_cycles[39] - cycles["input"][-1] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": 9}, "slots must be an integer from 1 to 8, not 9"),
        ({"depth": 0}, "depth must be an integer from 1 to 65536, not 0"),
    ],
)
def test_wrong_parameters_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResidualPath(**{"slots": 1, "depth": 4, **changes})
