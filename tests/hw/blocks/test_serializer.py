from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.blocks.serializer import Serializer
from edgedec.reference.integer_profile.numbers import I64
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, from_words, to_words


def inputs_of(vectors: list[I64], counts: list[int], lanes: int) -> dict[str, list[Any]]:
    return {
        "spares": [-n % lanes for n in counts],
        "input": [word for x in vectors for word in to_words(x, lanes)],
    }


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("width", "slots", "lanes"), [(18, 1, 5), (32, 3, 5), (8, 2, 2), (5, 8, 4)])
def test_vectors_of_every_length_are_serialized(width: int, slots: int, lanes: int, idle: float, stall: float) -> None:
    rng = np.random.default_rng(lanes)
    counts = [*range(1, 3 * lanes + 2), 1, 1, 2 * lanes, 1]
    vectors = [awkward(rng, slots, -(-n // lanes) * lanes, width) for n in counts]  # random values after the count
    inputs = inputs_of(vectors, counts, lanes)
    assert set(inputs["spares"]) == set(range(lanes))
    component = Serializer(width=width, slots=slots, lanes=lanes)
    collected = run(component, inputs, {"output": sum(counts)}, idle=idle, stall=stall)["output"]
    for result, x, n in zip(from_words(collected, counts), vectors, counts, strict=True):
        assert result.tolist() == x[:, :n].tolist()


def test_the_end_of_a_vector_waits_for_its_spare_count() -> None:
    """Check that only its last word waits, and that the spare count is taken together with that word."""
    counts, cycles = [11, 3], dict[str, list[int]]()
    vectors = [np.arange(2 * 5 * -(-n // 5)).reshape(2, -1) for n in counts]
    inputs = inputs_of(vectors, counts, 5)
    component = Serializer(width=8, slots=2, lanes=5)
    collected = run(component, inputs, {"output": 14}, idle={"spares": 0.97}, seed=1, cycles=cycles)["output"]
    assert [item["values"][0] for item in collected[:11]] == vectors[0].T[:11].tolist()
    assert cycles["output"][9] < cycles["spares"][0] - 5
    assert [cycles["input"][2], cycles["input"][3]] == cycles["spares"]


def test_an_element_takes_a_cycle() -> None:
    counts, cycles = [20, 7, 1, 11, 1, 1, 5], dict[str, list[int]]()
    vectors = [np.arange(2 * 5 * -(-n // 5)).reshape(2, -1) for n in counts]
    component = Serializer(width=8, slots=2, lanes=5)
    run(component, inputs_of(vectors, counts, 5), {"output": sum(counts)}, cycles=cycles)
    assert cycles["output"][0] - cycles["input"][0] == 1
    assert cycles["output"][-1] - cycles["output"][0] == sum(counts) - 1


def test_estimate_grows_with_the_word() -> None:
    small, large = (Serializer(width=18, slots=slots, lanes=5).resources for slots in (1, 4))
    assert large.ff - small.ff == 3 * 18 * 5
    assert large.lut - small.lut == 3 * 18 * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 65}, "width must be an integer from 1 to 64, not 65"),
        ({"slots": 9}, "slots must be an integer from 1 to 8, not 9"),
        ({"lanes": 1}, "lanes must be an integer from 2 to 64, not 1"),
    ],
)
def test_wrong_parameters_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Serializer(**{"width": 18, "slots": 1, "lanes": 5, **changes})
