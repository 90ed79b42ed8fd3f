"""Test what a port of a Zynq's memory accepts; test_zynq_system.py moves data through it."""

from __future__ import annotations

from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.sim import Simulator

from edgedec.hw.system.zynq.memory_port import MemoryPort


def test_addresses_have_forty_bits_by_default_and_sixty_four_at_most() -> None:
    assert len(MemoryPort(data_bytes=8, writes=True).read.araddr) == 40
    for bits in (33, 64):
        assert len(MemoryPort(data_bytes=4, address_bits=bits, writes=False).read.araddr) == bits
    for bits in (32, 65):
        with pytest.raises(ValueError, match=f"^address_bits must be 33 to 64, not {bits}$"):
            MemoryPort(data_bytes=4, address_bits=bits, writes=False)


@pytest.mark.parametrize("letter", ["r", "w"])
def test_a_burst_that_the_port_cannot_say_is_seen(letter: str) -> None:
    """Offer 16 beats, and then 17, whose number has five bits."""
    port = MemoryPort(data_bytes=8, writes=True)
    bus = port.read if letter == "r" else port.write
    m, reached = Module(), list[bool]()
    m.submodules.port = port

    async def bench(ctx: Any) -> None:
        ctx.set(getattr(bus, f"a{letter}len"), 16)  # unused while it is not valid
        await ctx.tick()
        ctx.set(getattr(bus, f"a{letter}valid"), 1)
        ctx.set(getattr(bus, f"a{letter}len"), 15)
        await ctx.tick()
        reached.append(True)
        ctx.set(getattr(bus, f"a{letter}len"), 16)
        await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    with pytest.raises(AssertionError, match=f"A{letter.upper()}LEN of an AXI3 port has 4 bits"):
        simulator.run()
    assert reached, "16 beats, or an address that is not valid, were refused"
