from __future__ import annotations

import numpy as np
import pytest

from edgedec.hw.blocks.collector import Collector
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, from_words, to_words


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("slots", "lanes"), [(1, 5), (3, 5), (2, 4), (8, 16), (1, 1), (2, 3)])
def test_vectors_of_every_length_are_collected(slots: int, lanes: int, idle: float, stall: float) -> None:
    rng = np.random.default_rng(lanes)
    widths = [*range(1, 12), lanes, 1]
    vectors = [awkward(rng, slots, width) for width in widths]
    payloads = [word for x in vectors for word in to_words(x, 1)]
    count = sum(-(-width // lanes) for width in widths)
    component = Collector(width=27, slots=slots, lanes=lanes)
    collected = run(component, {"input": payloads}, {"output": count}, idle=idle, stall=stall)["output"]
    for result, x in zip(from_words(collected, widths), vectors, strict=True):
        assert result.tolist() == x.tolist()


def test_an_element_takes_a_cycle() -> None:
    cycles: dict[str, list[int]] = {}
    vectors = [np.arange(n)[None] for n in (23, 1, 1, 10)]
    payloads = [word for x in vectors for word in to_words(x, 1)]
    run(Collector(width=8, slots=1, lanes=5), {"input": payloads}, {"output": 9}, cycles=cycles)
    assert np.ptp(cycles["input"]) == len(payloads) - 1
    assert cycles["output"][0] - cycles["input"][4] == 1


def test_a_word_has_one_lane_unless_said_otherwise() -> None:
    component = Collector(width=8, slots=3)
    assert [len(port.p["values"]) for port in (component.input, component.output)] == [1, 1]


def test_estimate_counts_the_word() -> None:
    three, four = (Collector(width=27, slots=slots, lanes=5).resources for slots in (3, 4))
    assert four.ff - three.ff == 27 * 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": 0}, "slots must be an integer from 1 to 8, not 0"),
        ({"lanes": 65}, "lanes must be an integer from 1 to 64, not 65"),
    ],
)
def test_wrong_parameters_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Collector(**{"width": 27, "slots": 1, **changes})
