from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from edgedec.hw.blocks.register_slice import RegisterSlice
from tests.hw.support.bench_streams import run


@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.7, 0.0), (0.0, 0.7), (0.4, 0.4)])
def test_entries_keep_their_order(idle: float, stall: float) -> None:
    rng = random.Random(5)
    items = [rng.getrandbits(9) for _ in range(120)]
    collected = run(RegisterSlice(shape=9), {"input": items}, {"output": len(items)}, idle=idle, stall=stall)
    assert collected["output"] == items


def test_latency_and_throughput_are_as_documented() -> None:
    cycles: dict[str, list[int]] = {}
    run(RegisterSlice(shape=8), {"input": list(range(40))}, {"output": 40}, cycles=cycles)
    first = cycles["input"][0]
    assert cycles["input"] == [first + n for n in range(40)]
    assert cycles["output"] == [first + 1 + n for n in range(40)]


def test_neither_side_depends_on_the_other_in_the_same_cycle() -> None:
    """Check that two items fit while the sink stalls, and that room appears a cycle after one was taken."""
    cut = RegisterSlice(shape=8)
    samples: list[tuple[int, int]] = []

    async def drive(ctx: Any) -> None:
        ctx.set(cut.input.valid, 1)
        for ready in (0, 0, 0, 1, 0, 1, 1, 1):
            before = ctx.get(cut.input.ready), ctx.get(cut.output.valid)
            ctx.set(cut.output.ready, ready)
            ctx.set(cut.input.payload, 7)
            assert (ctx.get(cut.input.ready), ctx.get(cut.output.valid)) == before
            samples.append(before)
            await ctx.tick()

    simulator = Simulator(cut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    simulator.run()
    assert samples == [(1, 0), (1, 1), (0, 1), (0, 1), (1, 1), (0, 1), (1, 1), (1, 1)]
