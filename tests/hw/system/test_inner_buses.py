"""Break a rule of AXI at the accelerator of each system: the monitors between the parts see it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.sim import Simulator

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.system.block_ram_system import OnChipSystem
from edgedec.hw.system.sdram.chip import IS42S16160G
from edgedec.hw.system.sdram_system import MEMORY_DOMAIN, UartSystem
from edgedec.hw.system.zynq.zynq_system import ZynqSystem
from edgedec.sim.verify import axi_monitor
from edgedec.sim.verify.axi_monitor import Watched
from tests.hw.support.fake_accelerator import Copier

CONFIG = AcceleratorConfig(beat_bytes=8, ports=1, slots=1, ultra=False, burst_beats=16, clock_hz=50e6)
BAUD = 1_000_000


class Crossing(Copier):
    """Has the ports of an accelerator and offers a read and a write of two beats across 4 KiB, which AXI forbids."""

    def __init__(self, config: AcceleratorConfig, *, wrong: bool = True) -> None:
        super().__init__(config)
        self._first = 0x1000 - config.port_bytes if wrong else 0x1000

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        for channel, bus in (("ar", self.read0), ("aw", self.write)):
            m.d.comb += [
                getattr(bus, f"{channel}valid").eq(1),
                getattr(bus, f"{channel}addr").eq(self._first),
                getattr(bus, f"{channel}len").eq(1),
            ]
        m.d.comb += [self.read0.rready.eq(1), self.write.wvalid.eq(1), self.write.bready.eq(1)]
        with m.If(self.write.wready):
            m.d.sync += self.write.wlast.eq(~self.write.wlast)
        return m


def system_of(kind: str, *, wrong: bool = True) -> Any:
    accelerator = Crossing(CONFIG, wrong=wrong)
    if kind == "zynq":
        return ZynqSystem(CONFIG, accelerator)
    if kind == "block RAM":
        return OnChipSystem(CONFIG, accelerator, memory_bytes=1 << 14, baud=BAUD)
    config = replace(CONFIG, clock_hz=25e6)
    return UartSystem(config, accelerator, chip=IS42S16160G, memory_hz=50e6, baud=BAUD, simulated=True)


def simulate(system: Any, cycles: int) -> None:
    """Run a system with its monitors, and with answers to nothing."""
    simulator = Simulator(Watched(system, protocol="AXI3", contracts=True))
    simulator.add_clock(1e-6)
    if isinstance(system, UartSystem):
        simulator.add_clock(5e-7, domain=MEMORY_DOMAIN)

    async def bench(ctx: Any) -> None:
        for _ in range(cycles):
            await ctx.tick()

    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(
    ("kind", "bus"),
    [
        ("zynq", "accelerator.read0"),
        ("zynq", "accelerator.write"),
        ("block RAM", "accelerator.read0"),
        ("block RAM", "accelerator.write"),
        ("SDRAM", "accelerator.write"),
        ("SDRAM", "controller.read0"),
        ("SDRAM", "controller.write0"),
    ],
)
def test_a_broken_rule_is_seen_at_each_bus(kind: str, bus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    system = system_of(kind)
    only = {bus: system.inner_buses[bus]}
    monkeypatch.setattr(type(system), "inner_buses", only)
    # The monitors at the ports of the system see it as well, and may speak first.
    monkeypatch.setattr(axi_monitor, "buses", lambda component: {})
    with pytest.raises(AssertionError, match=f"{bus}: the manager breaks boundary: a burst crosses 4 KiB"):
        simulate(system, 60)


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("kind", ["block RAM", "zynq", "SDRAM"])
def test_legal_bursts_are_silent(kind: str) -> None:
    simulate(system_of(kind, wrong=False), 60)
