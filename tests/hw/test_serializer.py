from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw import serializer
from edgedec.hw.serializer import Serializer
from tests.hw.streams import run
from tests.hw.vectors import PATTERNS, awkward, from_words, to_words


@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("width", "slots", "lanes"), [(18, 1, 5), (32, 3, 5), (8, 2, 1), (5, 8, 4)])
def test_every_count_up_to_several_words(width: int, slots: int, lanes: int, idle: float, stall: float) -> None:
    rng = np.random.default_rng(lanes)
    counts = [*range(1, 3 * lanes + 2), 1, 1, 2 * lanes, 1]
    vectors = [awkward(rng, slots, -(-n // lanes) * lanes, width) for n in counts]  # noise behind the count
    given = [word for x in vectors for word in to_words(x, lanes)]
    component = Serializer(width=width, slots=slots, lanes=lanes)
    inputs: dict[str, list[Any]] = {"counts": counts, "input": given}
    found = run(component, inputs, {"output": sum(counts)}, idle=idle, stall=stall)["output"]
    for result, x, n in zip(from_words(found, counts), vectors, counts, strict=True):
        assert result.tolist() == x[:, :n].tolist()


def test_an_element_a_cycle() -> None:
    counts, cycles = [20, 7, 11, 5], dict[str, list[int]]()
    vectors = [np.arange(2 * n).reshape(2, n) for n in counts]
    inputs: dict[str, list[Any]] = {"counts": counts, "input": [word for x in vectors for word in to_words(x)]}
    run(Serializer(width=8, slots=2), inputs, {"output": sum(counts)}, cycles=cycles)
    assert cycles["input"][0] - cycles["counts"][0] == 1
    assert cycles["output"][0] - cycles["input"][0] == 1
    gaps = np.diff(cycles["output"]) - 1
    assert np.flatnonzero(gaps).tolist() == [20 + 7 + 11 - 1]  # behind a word of one element
    assert gaps.max() == 1


def test_the_largest_count() -> None:
    """Its first elements: none of its bits is lost."""
    words = to_words(np.arange(100).reshape(1, 100))
    found = run(Serializer(width=8, slots=1), {"counts": [(1 << 20) - 1], "input": words}, {"output": 100})["output"]
    assert [item["values"][0][0] for item in found] == list(range(100))
    assert not any(item["last"] for item in found)


def test_estimate_grows_with_the_word() -> None:
    small, large = serializer.estimate(width=18, slots=1), serializer.estimate(width=18, slots=4)
    assert large.ff - small.ff == 3 * 18 * 5
    assert large.lut > small.lut


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"width": 65}, "width must be an integer from 1 to 64, not 65"),
        ({"slots": 9}, "slots must be an integer from 1 to 8, not 9"),
        ({"lanes": 0}, "lanes must be an integer from 1 to 64, not 0"),
    ],
)
def test_refused(changed: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Serializer(**{"width": 18, "slots": 1, **changed})
