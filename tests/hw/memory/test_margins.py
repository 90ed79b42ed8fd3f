"""Count the cycles of a drain and the places of a crossing, which their margins leave."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import ClockDomain, Module, Signal
from amaranth.sim import Simulator

from edgedec.hw.memory.axi_crossing import _Crossing
from edgedec.hw.memory.reset_drain import ResetDrain


def test_a_flush_ends_six_cycles_after_a_reset_if_no_burst_is_in_progress() -> None:
    dut, reset, flush = ResetDrain(patience=64), Signal(), list[int]()
    m = Module()
    m.domains.sync = domain = ClockDomain()
    m.submodules.dut = dut
    m.d.comb += domain.rst.eq(reset)

    async def bench(ctx: Any) -> None:
        ctx.set(dut.idle, 1)
        ctx.set(reset, 1)
        for _ in range(4):
            await ctx.tick()
        ctx.set(reset, 0)
        for _ in range(12):
            flush.append(ctx.get(dut.flush))
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert flush == [1] * 6 + [0] * 6


def test_all_places_of_a_crossing_can_be_used() -> None:
    """Put items into a queue whose sink takes none: its 16 places, and two registers behind them."""
    dut, accepted = _Crossing(width=8, depth=16, source="ours", sink="theirs"), list[int]()

    async def bench(ctx: Any) -> None:
        ctx.set(dut.input.valid, 1)
        for _ in range(100):
            accepted.append(ctx.get(dut.input.ready))
            await ctx.tick("ours")

    simulator = Simulator(dut)
    simulator.add_clock(1e-6, domain="ours")
    simulator.add_clock(1e-6, phase=3e-7, domain="theirs")
    simulator.add_testbench(bench)
    simulator.run()
    assert sum(accepted) == 16 + 2
