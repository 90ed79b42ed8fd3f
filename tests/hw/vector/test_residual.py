from __future__ import annotations

import itertools

import numpy as np
import pytest

from edgedec.hw.vector.residual import Residual
from edgedec.reference.integer_profile.numbers import saturate
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, from_words, to_words


def test_all_pairs_of_a_small_width_are_exact() -> None:
    pairs = np.array(list(itertools.product(range(-8, 8), repeat=2))).T[:, None]
    inputs = {"input": to_words(pairs[0]), "addend": to_words(pairs[1])}
    count = len(inputs["input"])
    collected = run(Residual(slots=1, width=4), inputs, {"output": count})["output"]
    (out,) = from_words(collected, [pairs.shape[2]])
    assert np.array_equal(out, saturate(pairs[0] + pairs[1], 4))


@pytest.mark.rtl(sample=4)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("slots", "lanes"), [(1, 5), (8, 1), (3, 1)])
def test_sums_equal_the_profile(slots: int, lanes: int, idle: float, stall: float) -> None:
    rng = np.random.default_rng(slots)
    widths = [1, 5, 17, 10, 3]
    x, y = ([awkward(rng, slots, width) for width in widths] for _ in range(2))
    inputs = {"input": [w for v in x for w in to_words(v, lanes)], "addend": [w for v in y for w in to_words(v, lanes)]}
    count = len(inputs["input"])
    cycles: dict[str, list[int]] = {}
    actual = run(Residual(slots=slots, lanes=lanes), inputs, {"output": count}, idle=idle, stall=stall, cycles=cycles)[
        "output"
    ]
    for out, a, b in zip(from_words(actual, widths), x, y, strict=True):
        assert np.array_equal(out, saturate(a + b, 27))
    if not idle and not stall:
        assert cycles["output"] == [cycle + 2 for cycle in cycles["input"]]


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^width must be an integer from 2 to 64, not 1$"):
        Residual(slots=1, width=1)
