"""Samples of a pin at each quarter of a cycle, in registers of one clock."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Module, Signal
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import Component, In, Out

from edgedec.hw.isa.registers import PHASES_OF_A_CYCLE

__all__ = ["QUARTER_DOMAIN", "SAMPLE_REGISTERS", "PhaseSamples"]

QUARTER_DOMAIN = "quarter"  # clock domain that is a quarter of a cycle later
SAMPLE_REGISTERS = 5  # registers from the pins to the samples


class PhaseSamples(Component):
    """Sample a pin with both edges of a clock and of one that is a quarter of a cycle later.

    Every value has at least half a cycle from one register to the next. Which phases are of use is found by reading a
    memory, so a sample may be metastable at the edges of its data.

    Parameters:
        domain: clock domain of the samples; the domain "quarter" is a quarter of a cycle later.

    Members:
        pin: In(1).
        samples: Out(4). The pin at the beginning of a cycle, and one, two and three quarters later.

    Latency: 5 cycles from the beginning of the cycle.
    """

    def __init__(self, *, domain: str) -> None:
        self._domain = domain
        super().__init__({"pin": In(1), "samples": Out(PHASES_OF_A_CYCLE)})

    def elaborate(self, platform: Any) -> Module:
        m, domain = Module(), self._domain
        falling = {name: f"{name}_falling" for name in (domain, QUARTER_DOMAIN)}
        for name, negative in falling.items():
            m.domains += ClockDomain(negative, clk_edge="neg", reset_less=True, local=True)
            m.d.comb += ClockSignal(negative).eq(ClockSignal(name))

        def synchronized(value: Signal, name: str, taker: str, stages: int) -> Signal:
            found = Signal(name=name)
            m.submodules[name] = FFSynchronizer(value, found, o_domain=taker, stages=stages)
            return found

        # Edges that take each sample, in cycles: 0, 1, 2, 3, 4.
        first = synchronized(self.pin, "at_0", domain, 5)
        # 1/4, 5/4, then 2, 3, 4.
        second = synchronized(synchronized(self.pin, "at_1", QUARTER_DOMAIN, 2), "of_1", domain, 3)
        # 1/2, 3/2, then 2, 3, 4.
        third = self._delayed(m, synchronized(self.pin, "at_2", falling[domain], 2), 3)
        # 3/4, 7/4, then 5/2, 7/2, then 4.
        last = synchronized(self.pin, "at_3", falling[QUARTER_DOMAIN], 2)
        fourth = self._delayed(m, synchronized(last, "of_3", falling[domain], 2), 1)
        m.d.comb += self.samples.eq(Cat(first, second, third, fourth))
        return m

    def _delayed(self, m: Module, value: Signal, cycles: int) -> Signal:
        """Return a value in registers of the samples' clock."""
        for number in range(cycles):
            later = Signal(name=f"{value.name}_later{number}")
            m.d[self._domain] += later.eq(value)
            value = later
        return value
