from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from edgedec.hw.blocks.fifo import Fifo
from tests.hw.support.bench_streams import run


@pytest.mark.parametrize("depth", [2, 3, 8, 13])
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.7, 0.0), (0.0, 0.7), (0.4, 0.4)])
def test_keeps_everything_in_order(depth: int, idle: float, stall: float) -> None:
    rng = random.Random(depth)
    items = [rng.getrandbits(9) for _ in range(80)]
    found = run(Fifo(shape=9, depth=depth), {"input": items}, {"output": len(items)}, idle=idle, stall=stall)
    assert found["output"] == items


def test_the_documented_latency_and_throughput() -> None:
    cycles: dict[str, list[int]] = {}
    run(Fifo(shape=8, depth=8), {"input": list(range(40))}, {"output": 40}, cycles=cycles)
    first = cycles["input"][0]
    assert cycles["input"] == [first + n for n in range(40)]
    assert cycles["output"] == [first + 3 + n for n in range(40)]


def test_level_and_room() -> None:
    """Two more than the depth fit, and the level counts them all."""
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
        for left in range(6, -1, -1):
            await ctx.tick()
            assert ctx.get(fifo.level) == left
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
def test_constructor_refuses(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fifo(shape=8, **parameters)
