from __future__ import annotations

from typing import Any

from amaranth.sim import Simulator

from edgedec.hw.vector.residual_path import ResidualPath


def test_idle_means_that_nothing_is_offered_or_under_way() -> None:
    path = ResidualPath(slots=1, depth=4)

    async def bench(ctx: Any) -> None:
        assert ctx.get(path.idle)
        for port in (path.loads, path.additions):
            ctx.set(port.valid, 1)
            assert not ctx.get(path.idle)  # before it is taken
            ctx.set(port.valid, 0)
            assert ctx.get(path.idle)
        ctx.set(path.output.ready, 1)
        ctx.set(path.loads.payload, 2)
        ctx.set(path.loads.valid, 1)
        await ctx.tick().until(path.loads.ready)
        ctx.set(path.loads.valid, 0)
        for _ in range(2):
            assert not ctx.get(path.idle)
            ctx.set(path.items.valid, 1)
            await ctx.tick().until(path.items.ready)
            ctx.set(path.items.valid, 0)
        await ctx.tick()
        assert ctx.get(path.idle)

    simulator = Simulator(path)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
