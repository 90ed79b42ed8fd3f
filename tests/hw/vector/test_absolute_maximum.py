from __future__ import annotations

import numpy as np
import pytest

from edgedec.hw.vector.absolute_maximum import AbsoluteMaximum
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, to_words


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_maxima_equal_those_of_numpy(slots: int, idle: float, stall: float) -> None:
    rng = np.random.default_rng(slots)
    vectors = [np.zeros((slots, 3), np.int64), *(awkward(rng, slots, width) for width in (1, 5, 4, 13, 40))]
    items = [word for x in vectors for word in to_words(x)]
    cycles: dict[str, list[int]] = {}
    component = AbsoluteMaximum(slots=slots)
    actual = run(component, {"input": items}, {"output": 6}, idle=idle, stall=stall, cycles=cycles)["output"]
    assert actual == [np.abs(x).max(axis=1).tolist() for x in vectors]
    if not idle and not stall:
        assert cycles["output"][-1] - cycles["input"][-1] == 2
        assert cycles["input"][-1] - cycles["input"][-40] == 39


def test_all_pairs_of_small_values() -> None:
    pairs = [(a, b) for a in range(-3, 4) for b in range(-3, 4)]
    items = [word for pair in pairs for word in to_words(np.array([pair]))]
    actual = run(AbsoluteMaximum(slots=1, width=3), {"input": items}, {"output": len(pairs)})["output"]
    assert actual == [[max(abs(a), abs(b))] for a, b in pairs]


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^width must be an integer from 2 to 64, not 1$"):
        AbsoluteMaximum(slots=1, width=1)
