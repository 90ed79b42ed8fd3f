"""Bounded liveness: a part with work goes on within some cycles, if what is around it waits for a bounded time only.

"A pass ends" follows from it: the beats, bursts and answers of a pass are finite, and each comes within the bound of the one
before it. Without a bound on what is around, nothing ends: a memory that never answers stops every design.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal, Value

__all__ = ["fair", "fair_reads", "fair_writes", "goes_on", "lasting"]


def lasting(m: Module, condition: Value, most: int, name: str) -> Signal:
    """Return for how many cycles before this one a condition has held without a break, at most ``most + 1``."""
    cycles = Signal(range(most + 2), name=f"{name}_cycles")
    m.d.sync += cycles.eq(Mux(condition, Mux(cycles == most + 1, cycles, cycles + 1), 0))
    return cycles


def fair(m: Module, waits: Value, patience: int, name: str) -> None:
    """Assume that a wait lasts ``patience`` cycles at most."""
    m.d.comb += Assume(~waits | (lasting(m, waits, patience, name) < patience))


def goes_on(m: Module, *, work: Value, moves: Value, bound: int, name: str) -> None:
    """Assert that there are never more than ``bound`` cycles with work in a row in which nothing moves."""
    stuck = Signal(name=f"{name}_stuck")
    m.d.comb += [stuck.eq(work & ~moves), Assert(~stuck | (lasting(m, stuck, bound, name) < bound))]


def fair_reads(m: Module, bus: Any, patience: int, name: str, *, bits: int = 8) -> Signal:
    """Assume a fair memory at the read channels: it takes addresses and gives beats after ``patience`` cycles at most.

    Return the number of beats that the memory owes.
    """
    owed = Signal(bits, name=f"{name}_owed")
    asked, given = bus.arvalid & bus.arready, bus.rvalid & bus.rready
    m.d.sync += owed.eq(owed + Mux(asked, bus.arlen + 1, 0) - given)
    fair(m, bus.arvalid & ~bus.arready, patience, f"{name}_ar")
    fair(m, (owed != 0) & ~bus.rvalid, patience, f"{name}_r")
    return owed


def fair_writes(m: Module, bus: Any, patience: int, name: str, *, bits: int = 4) -> Signal:
    """Assume a fair memory at the write channels: it takes and answers everything after ``patience`` cycles at most.

    Return the number of bursts that it has to answer.
    """
    addresses, datas = Signal(bits, name=f"{name}_addresses"), Signal(bits, name=f"{name}_datas")
    answered = bus.bvalid & bus.bready
    m.d.sync += [
        addresses.eq(addresses + (bus.awvalid & bus.awready) - answered),
        datas.eq(datas + (bus.wvalid & bus.wready & bus.wlast) - answered),
    ]
    complete = Cat(addresses != 0, datas != 0).all()
    for channel in ("aw", "w"):
        fair(m, getattr(bus, f"{channel}valid") & ~getattr(bus, f"{channel}ready"), patience, f"{name}_{channel}")
    fair(m, complete & ~bus.bvalid, patience, f"{name}_b")
    return addresses
