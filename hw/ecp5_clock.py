"""A clock of an ECP5's PLL that begins when the PLL is in step: its registers have what the bitstream gave them, so no wire
has to carry a reset to all of them in one cycle.
"""

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Instance, Module, Signal
from amaranth.lib.cdc import FFSynchronizer

__all__ = ["started_clock"]

_STAGES = 3


def started_clock(m: Module, platform: Any, domain: str, clock: Signal, locked: Signal, hz: float) -> None:
    """A clock domain without a reset.

    Args:
        m: gets the domain.
        domain: its name.
        clock: of the PLL; constrained to ``hz``.
        locked: the PLL's.

    Source: Lattice FPGA-TN-02200, "Dynamic Clock Control": DCCA switches its clock without a glitch.
    """
    before, running, begun = f"{domain}_before", Signal(), Signal(name=f"{domain}_clock")
    m.domains += [ClockDomain(before, reset_less=True), ClockDomain(domain, reset_less=True)]
    m.submodules[f"{domain}_running"] = FFSynchronizer(locked, running, o_domain=before, stages=_STAGES)
    m.submodules[f"{domain}_gate"] = Instance("DCCA", i_CLKI=clock, i_CE=running, o_CLKO=begun)
    m.d.comb += [ClockSignal(before).eq(clock), ClockSignal(domain).eq(begun)]
    for each in (clock, begun):
        platform.add_clock_constraint(each, hz)
