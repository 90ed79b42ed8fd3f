"""Test the ports of the system of a board with an SDRAM, and that it says when the memory is initialized."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
from amaranth.sim import Simulator

from edgedec.hw.system.sdram.chip import IS42S16160G
from edgedec.hw.system.sdram_system import MEMORY_DOMAIN, UartSystem
from tests.hw.support.fake_accelerator import Copier
from tests.hw.system.test_inner_buses import BAUD, CONFIG

SLOW = replace(CONFIG, clock_hz=25e6)


def system(**options: Any) -> UartSystem:
    chip = replace(IS42S16160G, startup_ns=500)  # a start without a long delay
    return UartSystem(SLOW, Copier(SLOW), chip=chip, memory_hz=50e6, baud=BAUD, **options)


def test_its_ports_are_lines_and_the_chips_pins() -> None:
    members = system().signature.members
    assert set(members) == {"receive", "transmit", "memory", "ready", "interrupt"}
    assert [members[name].shape for name in ("receive", "transmit", "ready", "interrupt")] == [1] * 4
    assert set(system().inner_buses) >= {f"controller.{kind}{n}" for kind in ("read", "write") for n in (0, 1)}


def test_the_memory_has_two_ports_of_a_kind_and_takes_its_pins_without_registers() -> None:
    """Look at the controller, because a third port would stand there unconnected."""
    controller = system()._controller
    assert [name for name in controller.signature.members if name.startswith("write")] == ["write0", "write1"]
    assert inspect.signature(UartSystem).parameters["registers"].default == 0


@pytest.mark.rtl
def test_it_is_ready_once_the_memory_is_initialized() -> None:
    dut, ready = system(), list[int]()
    simulator = Simulator(dut)
    simulator.add_clock(4e-8)
    simulator.add_clock(2e-8, domain=MEMORY_DOMAIN)

    async def bench(ctx: Any) -> None:
        for _ in range(200):
            ready.append(ctx.get(dut.ready))
            await ctx.tick(MEMORY_DOMAIN)

    simulator.add_testbench(bench)
    simulator.run()
    assert (ready[0], ready[-1]) == (0, 1)
    assert ready == sorted(ready)
