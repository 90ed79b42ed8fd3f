"""Test that a pin is sampled at each quarter of a cycle, and that the samples of a cycle come together."""

from __future__ import annotations

from typing import Any

import pytest
from amaranth.sim import Simulator

from edgedec.boards.flows.ecp5.phase_samples import QUARTER_DOMAIN, SAMPLE_REGISTERS, PhaseSamples
from edgedec.hw.isa.registers import PHASES_OF_A_CYCLE

CYCLE_S = 8e-9


@pytest.mark.parametrize("phase", range(PHASES_OF_A_CYCLE))
def test_a_sample_is_the_pin_at_its_quarter(phase: int) -> None:
    """Raise the pin for a moment around one quarter of one cycle: its sample alone sees it, five cycles later."""
    dut, seen = PhaseSamples(domain="memory"), list[int]()
    simulator = Simulator(dut)
    # Rising edges are at multiples of a cycle, and a quarter later.
    simulator.add_clock(CYCLE_S, phase=CYCLE_S, domain="memory")
    simulator.add_clock(CYCLE_S, phase=1.25 * CYCLE_S, domain=QUARTER_DOMAIN)

    async def bench(ctx: Any) -> None:
        await ctx.delay((4 + phase / 4) * CYCLE_S - CYCLE_S / 16)
        ctx.set(dut.pin, 1)
        await ctx.delay(CYCLE_S / 8)
        ctx.set(dut.pin, 0)

    async def watch(ctx: Any) -> None:
        for _ in range(14):
            _, _, samples = await ctx.tick("memory").sample(dut.samples)
            seen.append(int(samples))

    simulator.add_testbench(bench)
    simulator.add_testbench(watch)
    simulator.run()
    cycle = seen.index(1 << phase)
    assert [value for number, value in enumerate(seen) if number != cycle] == [0] * 13
    assert cycle == 3 + SAMPLE_REGISTERS
