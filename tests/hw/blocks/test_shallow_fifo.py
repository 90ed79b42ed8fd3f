from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from edgedec.hw.blocks.shallow_fifo import ShallowFifo
from tests.hw.support.bench_streams import run


@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.7, 0.0), (0.0, 0.7), (0.4, 0.4)])
def test_entries_keep_their_order(depth: int, idle: float, stall: float) -> None:
    rng, cycles = random.Random(depth), dict[str, list[int]]()
    items = [rng.getrandbits(9) for _ in range(80)]
    fifo = ShallowFifo(shape=9, depth=depth)
    collected = run(fifo, {"input": items}, {"output": len(items)}, idle=idle, stall=stall, cycles=cycles)
    assert collected["output"] == items
    if not stall:  # the documented latency and, with no gap at the input, throughput
        assert cycles["output"] == [cycle + 1 for cycle in cycles["input"]]
        assert idle or cycles["input"] == [cycles["input"][0] + number for number in range(len(items))]


def test_the_level_counts_the_entries() -> None:
    fifo = ShallowFifo(shape=8, depth=4)

    async def fill(ctx: Any) -> None:
        for valid, ready, levels in ((1, 0, (1, 2, 3, 4, 4)), (0, 1, (3, 2, 1, 0, 0))):
            ctx.set(fifo.input.valid, valid)
            ctx.set(fifo.output.ready, ready)
            for level in levels:
                await ctx.tick()
                assert ctx.get(fifo.level) == level
                assert ctx.get(fifo.input.ready) == (level < 4)
                assert ctx.get(fifo.output.valid) == (level > 0)

    simulator = Simulator(fifo)
    simulator.add_clock(1e-6)
    simulator.add_testbench(fill)
    simulator.run()


@pytest.mark.parametrize(
    ("depth", "message"),
    [(1, "depth must be an integer from 2 to 64, not 1"), (6, "depth must be a power of two, not 6")],
)
def test_wrong_depths_are_refused(depth: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShallowFifo(shape=8, depth=depth)
