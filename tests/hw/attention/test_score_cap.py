from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from amaranth.sim import Simulator

from edgedec.hw.attention.score_cap import CAP_STAGES, ScoreCap
from edgedec.hw.blocks.roms import CAP_STEP, CAP_VALUE
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.ops.attention import capped_scores
from edgedec.reference.integer_profile.tables import cap_table

COUNT = 12  # words with the same factors


def capped(words: list[tuple[I64, I64, int]], bits: int) -> list[Any]:
    """Stream words: scores [lanes, slots], factors [slots] and shift; return the capped scores of each."""
    lanes, slots = words[0][0].shape
    component, outputs = ScoreCap(slots=slots, lanes=lanes, bits=bits), list[Any]()

    async def bench(ctx: Any) -> None:
        for scores, factors, shift in words + words[:1] * CAP_STAGES:
            ctx.set(component.factors, {"factors": factors.tolist(), "shift": shift})
            ctx.set(component.input, scores.tolist())
            outputs.append([[int(x) for x in lane] for lane in ctx.get(component.output)])
            await ctx.tick()

    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return outputs[CAP_STAGES:]


@pytest.mark.parametrize(
    ("slots", "lanes", "bits"),
    [(1, 1, 23), *(pytest.param(*shape, marks=pytest.mark.rtl) for shape in ((3, 2, 27), (2, 1, 30), (1, 2, 12)))],
)
def test_scores_equal_the_profile(slots: int, lanes: int, bits: int) -> None:
    """Change the factors from one cycle to the next, as between two heads; some scores saturate."""
    rng, most = np.random.default_rng([slots, bits]), (1 << (bits - 1)) - 1
    words, expected = [], []
    for shift in (0, 7, 15, 16, 20, 24, 33, 47):
        scores = rng.integers(-most, most + 1, (COUNT, lanes, slots)) >> rng.integers(
            0, bits - 1, (COUNT, lanes, slots)
        )
        scores[:4, 0, 0] = [0, most, -most, -1]
        factors = rng.integers(1 << 15, 1 << 16, slots)
        words += [(word, factors, shift) for word in scores]
        expected += capped_scores(scores, factors, shift).tolist()
    assert np.abs(expected).max() == 130_984
    assert capped(words, bits) == expected


def test_the_table_is_the_profiles() -> None:
    assert [list(CAP_VALUE), list(CAP_STEP)] == [part.tolist() for part in cap_table()]
