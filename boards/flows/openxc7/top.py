"""The top of a Zynq-7000: the processing system, its clock and reset, and a ZynqSystem at its ports. It has no pins."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Const, Instance, Module, Signal
from amaranth.lib.cdc import ResetSynchronizer
from amaranth.lib.wiring import Component

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.system.zynq.zynq_system import ZynqSystem

__all__ = ["ZynqTop", "processing_system_ports"]

_MOST_PORTS = 4  # S_AXI_HP0 to HP3
_INTERRUPTS = 20  # bits of IRQF2P; the first one is the interrupt 61 of Linux
_RESET_STAGES = 4
_SIZE_BITS = 2  # bits of AxSIZE at the processing system: it has no beats wider than 8 bytes
# Fields of a channel that the processing system's ports have, by AXI's name.
_ADDRESS = ("id", "addr", "len", "size", "burst", "lock", "cache", "prot", "valid")


class ZynqTop(Component):  # type: ignore[misc]  # no types in amaranth
    """Connect a ZynqSystem to the hard processing system.

    The clock is FCLK_CLK0, whose frequency the processor sets; the reset is FCLK_RESET0_N, which is released with the
    clock. Pins of the processing system (DDR, MIO) are wired in silicon, and the boot program sets them up. Inputs that
    are not named here are tied low by nextpnr-xilinx.

    Parameters:
        config: configuration of the accelerator.
        accelerator: an Accelerator of that configuration, or a component with its ports.

    Members:
        system: the ZynqSystem.
    """

    def __init__(self, config: AcceleratorConfig, accelerator: Any) -> None:
        if config.ports > _MOST_PORTS:
            raise ValueError(f"config.ports must be at most {_MOST_PORTS}, not {config.ports!r}")
        self._ports = config.ports
        self.system = ZynqSystem(config, accelerator)
        super().__init__({})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.system = system = self.system
        clocks, resets = Signal(4), Signal(4)
        m.domains.sync = ClockDomain()
        m.submodules.clock = Instance("BUFG", i_I=clocks[0], o_O=ClockSignal())
        m.submodules.reset = ResetSynchronizer(~resets[0], stages=_RESET_STAGES)
        ports = {
            "o_FCLKCLK": clocks,
            "o_FCLKRESETN": resets,
            "i_IRQF2P": Cat(system.interrupt, Const(0, _INTERRUPTS - 1)),
            **processing_system_ports("MAXIGP0", system.registers, manager=True),
        }
        for port in range(self._ports):
            ports |= processing_system_ports(f"SAXIHP{port}", getattr(system, f"memory{port}"), manager=False)
        m.submodules.processing_system = Instance("PS7", **ports)
        return m


def processing_system_ports(prefix: str, bus: Any, *, manager: bool) -> dict[str, Any]:
    """Return the ports of the cell PS7 for one AXI3 bus, as arguments of an Instance.

    Args:
        prefix: name of the bus, MAXIGP0 or SAXIHP0 and so on.
        bus: port of a ZynqSystem. A bus without write channels leaves those of the cell unconnected.
        manager: whether the processing system is the manager of the bus.

    Source: AMD UG585, "PS-PL AXI interfaces"; the names are those of the cell in yosys's library.
    """
    directions = {True: "o" if manager else "i", False: "i" if manager else "o"}  # by: the bus's manager drives it
    ports: dict[str, Any] = {f"i_{prefix}ACLK": ClockSignal()}
    channels: dict[str, tuple[str, ...]] = {"r": ("id", "data", "resp", "last", "valid")}
    if hasattr(bus, "wdata"):
        channels |= {"w": ("id", "data", "strb", "last", "valid"), "b": ("id", "resp", "valid")}
    for letter in sorted(channels.keys() & {"r", "w"}):
        for name in _ADDRESS:
            value = getattr(bus, f"a{letter}{name}")
            narrow = value[:_SIZE_BITS] if name == "size" else value
            ports[f"{directions[True]}_{prefix}A{letter.upper()}{name.upper()}"] = narrow
        ports[f"{directions[False]}_{prefix}A{letter.upper()}READY"] = getattr(bus, f"a{letter}ready")
    for letter, names in channels.items():
        for name in names:
            ports[f"{directions[letter == 'w']}_{prefix}{letter.upper()}{name.upper()}"] = getattr(bus, letter + name)
        ports[f"{directions[letter != 'w']}_{prefix}{letter.upper()}READY"] = getattr(bus, f"{letter}ready")
    return ports
