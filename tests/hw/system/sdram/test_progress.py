"""Test when a timer of the SDRAM's sequencer is free."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, Out
from amaranth.sim import Simulator

from edgedec.hw.system.sdram.progress import Timer


class Started(Component):
    """Start a timer when ``start`` is high, for ``cycles`` cycles, or for ``longest`` without them."""

    def __init__(self, longest: int, cycles: int | None) -> None:
        super().__init__({"start": In(1), "free": Out(1)})
        self._longest, self._cycles = longest, cycles

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        timer = Timer(m, self._longest, "timer")
        with m.If(self.start):
            timer.start(m, self._cycles)
        m.d.comb += self.free.eq(timer.free())
        return m


@pytest.mark.parametrize(
    ("longest", "cycles"), [(9, None), (9, 9), (9, 5), (9, 3), (9, 2), (9, 1), (3, None), (1, None)]
)
def test_a_command_follows_as_many_cycles_after_the_start_as_it_must(longest: int, cycles: int | None) -> None:
    """Count the cycles from a start to the first one in which the timer is free; the command is two cycles later."""
    dut, busy = Started(longest, cycles), list[int]()

    async def bench(ctx: Any) -> None:
        assert ctx.get(dut.free)  # no command was before
        ctx.set(dut.start, 1)
        await ctx.tick()
        ctx.set(dut.start, 0)
        now = 1
        while not ctx.get(dut.free):
            await ctx.tick()
            now += 1
        busy.append(now)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert busy == [max((longest if cycles is None else cycles) - 2, 1)]
