"""Count the writes that an SDRAM's controller takes while nobody takes their answers."""

from __future__ import annotations

from typing import Any

import pytest
from amaranth.sim import Simulator

from tests.hw.system.sdram.support.bench_controller import CLOCK_HZ, chip_process
from tests.hw.system.sdram.test_controller import controller, model

WRITES = 29  # a controller has 32 places for answers, and keeps three for bursts that its count does not show yet


@pytest.mark.rtl
def test_answers_that_wait_hold_further_writes_back() -> None:
    """Offer writes of one beat all the time; the monitor of the other tests does not follow so many."""
    dut, accepted, answers = controller(reads=1, writes=1), list[int](), list[int]()
    bus = dut.write0

    async def bench(ctx: Any) -> None:
        for name, value in (("awvalid", 1), ("awlen", 0), ("wvalid", 1), ("wstrb", 15), ("wlast", 1)):
            ctx.set(getattr(bus, name), value)
        for _ in range(3000):
            accepted.append(ctx.get(bus.awready))
            await ctx.tick()
        ctx.set(bus.awvalid, 0)
        ctx.set(bus.wvalid, 0)
        ctx.set(bus.bready, 1)
        for _ in range(200):
            answers.append(ctx.get(bus.bvalid))
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1 / CLOCK_HZ)
    simulator.add_testbench(chip_process(model(), dut.pins), background=True)
    simulator.add_testbench(bench)
    simulator.run()
    assert sum(accepted) == sum(answers) == WRITES
