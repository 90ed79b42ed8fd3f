"""A gated clock of an ECP5's PLL, which starts once the PLL is locked.

Registers then hold the values of the bitstream at the first edge, so no wire has to carry a reset to all of them within
one cycle.
"""

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Instance, Module, Signal
from amaranth.lib.cdc import FFSynchronizer

__all__ = ["started_clock"]

_STAGES = 3  # registers of the synchronizer of ``locked``


def started_clock(m: Module, platform: Any, domain: str, clock: Signal, locked: Signal, hz: float) -> None:
    """Add a clock domain without a reset.

    Args:
        m: module that gets the domain.
        domain: name of the domain.
        clock: output of the PLL; it is constrained to ``hz``.
        locked: the PLL's lock output.
        hz: frequency in Hz.

    Source: Lattice FPGA-TN-02200, "Dynamic Clock Control": DCCA switches its clock without a glitch.
    """
    before, running, gated = f"{domain}_before", Signal(), Signal(name=f"{domain}_clock")
    m.domains += [ClockDomain(before, reset_less=True), ClockDomain(domain, reset_less=True)]
    m.submodules[f"{domain}_running"] = FFSynchronizer(locked, running, o_domain=before, stages=_STAGES)
    m.submodules[f"{domain}_gate"] = Instance("DCCA", i_CLKI=clock, i_CE=running, o_CLKO=gated)
    m.d.comb += [ClockSignal(before).eq(clock), ClockSignal(domain).eq(gated)]
    for each in (clock, gated):
        platform.add_clock_constraint(each, hz)
