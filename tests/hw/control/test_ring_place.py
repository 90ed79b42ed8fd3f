from __future__ import annotations

from typing import Any

import pytest
from amaranth.sim import Simulator

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.control.ring_place import RingPlace
from tests.hw.support.bench_streams import plain

# Groups of 1, 2, 4 and 8 positions; rings of which the groups are a power of two, and not.
CONFIGS = {
    1: AcceleratorConfig(beat_bytes=4, ports=1, slots=2, context=300, head_dim=12, window=2, top_k=2),
    2: AcceleratorConfig(beat_bytes=8, ports=2, slots=4, context=1000, head_dim=8, window=65),
    4: AcceleratorConfig(beat_bytes=64, ports=4, context=1024, head_dim=128, window=40),
    8: AcceleratorConfig(beat_bytes=64, ports=1, context=4096, head_dim=24, window=513),
}


@pytest.mark.parametrize("positions", CONFIGS)
def test_every_pass_has_the_place_of_the_definition(positions: int) -> None:
    """Begin anew with other numbers of positions, of which some follow before the place of the last one is known."""
    config = CONFIGS[positions]
    rows, dut = config.ring, RingPlace(config)
    assert rows is not None
    assert rows.layout.positions == positions
    edges = {at + by for at in (0, rows.window, rows.rows, 2 * rows.rows) for by in range(-3, 4)}
    numbers = sorted(at for at in {*edges, *range(0, config.context, 37), config.context} if 0 <= at <= config.context)
    latency = (config.context // positions).bit_length() + 6

    async def bench(ctx: Any) -> None:
        for index, committed in enumerate(numbers):
            ctx.set(dut.committed, committed)
            ctx.set(dut.begin, 1)
            await ctx.tick()
            ctx.set(dut.begin, 0)
            if index % 5 == 0:  # a soft reset, and the next doorbell
                await ctx.tick().repeat(1 + index % 7)
                continue
            cycles = 1
            while not ctx.get(dut.settled):
                await ctx.tick()
                cycles += 1
            assert cycles == latency
            actual = plain(ctx.get(dut.output))
            ranges = [*rows.ranges(committed), (0, 0)] if committed else [(rows.ranges(1)[0][0], 0), (0, 0)]
            (start, before), (_, after) = ranges[:2]
            assert actual == {
                "place": rows.place(committed),
                "first": rows.first(committed),
                "start": start,
                "before": before,
                "after": after,
            }, committed

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def test_the_estimate_grows_with_the_context() -> None:
    small, large = (RingPlace(AcceleratorConfig(window=64, context=context)).resources for context in (512, 65536))
    assert small.lut < large.lut
    assert small.ff < large.ff
