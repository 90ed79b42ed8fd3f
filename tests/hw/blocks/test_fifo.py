from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from edgedec.hw.blocks.fifo import Fifo
from tests.hw.support.bench_streams import run


@pytest.mark.rtl(sample=3)
@pytest.mark.parametrize("depth", [2, 3, 8, 13])
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.7, 0.0), (0.0, 0.7), (0.4, 0.4)])
def test_entries_keep_their_order(depth: int, idle: float, stall: float) -> None:
    rng = random.Random(depth)
    items = [rng.getrandbits(9) for _ in range(80)]
    collected = run(Fifo(shape=9, depth=depth), {"input": items}, {"output": len(items)}, idle=idle, stall=stall)
    assert collected["output"] == items


def test_latency_and_throughput_are_as_documented() -> None:
    cycles: dict[str, list[int]] = {}
    run(Fifo(shape=8, depth=8), {"input": list(range(40))}, {"output": 40}, cycles=cycles)
    first = cycles["input"][0]
    assert cycles["input"] == [first + n for n in range(40)]
    assert cycles["output"] == [first + 3 + n for n in range(40)]


def test_the_level_counts_two_more_than_the_depth() -> None:
    """Check that two more entries than the depth fit, and that the level counts them."""
    fifo = Fifo(shape=8, depth=5)

    async def fill(ctx: Any) -> None:
        ctx.set(fifo.input.valid, 1)
        await ctx.tick()
        ctx.set(fifo.input.valid, 0)
        await ctx.tick().repeat(6)  # the first entry is at the output before the others come
        ctx.set(fifo.input.valid, 1)
        await ctx.tick().repeat(20)
        assert ctx.get(fifo.level) == 7
        assert not ctx.get(fifo.input.ready)
        ctx.set(fifo.input.valid, 0)
        ctx.set(fifo.output.ready, 1)
        for level in range(6, -1, -1):
            await ctx.tick()
            assert ctx.get(fifo.level) == level
            assert ctx.get(fifo.empty) == (level == 0)
        assert not ctx.get(fifo.output.valid)

    simulator = Simulator(fifo)
    simulator.add_clock(1e-6)
    simulator.add_testbench(fill)
    simulator.run()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"depth": 1}, "depth must be an integer from 2 to 65536, not 1"),
        ({"depth": 4, "style": "fast"}, "style must be one of auto, block, ultra, distributed, not 'fast'"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fifo(shape=8, **parameters)
