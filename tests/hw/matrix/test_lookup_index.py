from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
from amaranth.sim import Simulator

from edgedec.hw.matrix._table_walk import WALK
from edgedec.hw.matrix.lookup_index import LookupIndex
from tests.hw.support.reference_ternary import beat_of


def test_the_walk_has_one_of_each_pair_of_opposites() -> None:
    stored = set(WALK)
    assert len(stored) == len(WALK) == 14
    for trits in product((-1, 0, 1), repeat=3):
        opposite = tuple(-trit for trit in trits)
        assert (trits in stored) != (opposite in stored) or trits == opposite


@pytest.mark.parametrize("beat_bytes", [4, 5])
def test_all_trits_of_a_group_have_their_index(beat_bytes: int) -> None:
    """Use a group of three columns next to one of one or two, in all rows at once, every row with other trits."""
    component = LookupIndex(beat_bytes=beat_bytes)
    combinations = list(product((-1, 0, 1), repeat=beat_bytes))
    rng = random.Random(beat_bytes)

    async def bench(ctx: Any) -> None:
        for first in range(0, len(combinations), 5):
            rows = (combinations * 2)[first : first + 5]
            rng.shuffle(rows)
            ctx.set(component.beat, beat_of(np.array(rows)))
            await ctx.tick()
            assert not ctx.get(component.error)
            for row, trits in enumerate(rows):
                assert _looked_up(ctx.get(component.indexes[row][0])) == list(trits[:3])
                narrow = ctx.get(component.indexes[row][1])
                assert not narrow.negate
                assert _looked_up(narrow)[: beat_bytes - 3] == list(trits[3:])

    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def _looked_up(index: Any) -> list[int]:
    return [-trit if index.negate else trit for trit in WALK[index.address]]


def test_any_bad_byte_is_an_error() -> None:
    component = LookupIndex(beat_bytes=4)

    async def bench(ctx: Any) -> None:
        for column in range(4):
            for byte in (242, 243, 255):
                ctx.set(component.beat, [byte if c == column else 121 for c in range(4)])
                await ctx.tick()
                assert ctx.get(component.error) == (byte > 242)

    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize(
    ("beat_bytes", "message"),
    [
        (3, "beat_bytes must be an integer from 4 to 64, not 3"),
        (65, "beat_bytes must be an integer from 4 to 64, not 65"),
        (True, "beat_bytes must be an integer from 4 to 64, not True"),
        (6, "beat_bytes must not be a multiple of 3, not 6"),
    ],
)
def test_wrong_parameters_are_refused(beat_bytes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LookupIndex(beat_bytes=beat_bytes)


@pytest.mark.parametrize("beat_bytes", [4, 8, 64])
def test_ports_have_their_widths(beat_bytes: int) -> None:
    component = LookupIndex(beat_bytes=beat_bytes)
    assert len(component.error) == 1
    assert len(component.beat.as_value()) == 8 * beat_bytes
