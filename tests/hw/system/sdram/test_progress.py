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
    """Start a timer when ``start`` is high, for ``cycles`` cycles, or for ``longest`` without them.

    Args:
        asked: cycles that ``free`` is asked for, of a start with the longest time; None: all of them.
    """

    def __init__(self, longest: int, *, cycles: int | None = None, asked: int | None = None) -> None:
        super().__init__({"start": In(1), "free": Out(1)})
        self._longest, self._cycles, self._asked = longest, cycles, asked

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        timer = Timer(m, self._longest, "timer")
        with m.If(self.start):
            timer.start(m, self._cycles)
        m.d.comb += self.free.eq(timer.free(self._asked))
        return m


def busy(dut: Started) -> int:
    """Return the cycles from a start to the first one in which the timer is free; its command is two cycles later."""
    found = list[int]()

    async def bench(ctx: Any) -> None:
        assert ctx.get(dut.free)  # no command was before
        ctx.set(dut.start, 1)
        await ctx.tick()
        ctx.set(dut.start, 0)
        now = 1
        while not ctx.get(dut.free):
            await ctx.tick()
            now += 1
        found.append(now)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return found[0]


@pytest.mark.parametrize(
    ("longest", "cycles"), [(9, None), (9, 9), (9, 5), (9, 3), (9, 2), (9, 1), (3, None), (1, None)]
)
def test_a_command_follows_as_many_cycles_after_the_start_as_it_must(longest: int, cycles: int | None) -> None:
    assert busy(Started(longest, cycles=cycles)) == max((longest if cycles is None else cycles) - 2, 1)


@pytest.mark.parametrize("asked", [9, 5, 4, 3, 2, 1])
def test_a_shorter_time_of_the_same_start_is_over_earlier(asked: int) -> None:
    assert busy(Started(9, asked=asked)) == max(asked - 2, 1)
