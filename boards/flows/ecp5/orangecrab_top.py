"""The top of an OrangeCrab r0.2: clock, pins, and an OnChipSystem between them. It has not run on a board yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from amaranth.build import Attrs, Pins, Resource, Subsignal
from amaranth.hdl import ClockDomain, ClockSignal, Elaboratable, Module, Signal
from amaranth.lib import io
from amaranth.lib.cdc import FFSynchronizer

from edgedec.boards.flows.ecp5.clock import started_clock
from edgedec.boards.flows.ecp5.pins import board_platform
from edgedec.boards.flows.ecp5.pll import PllSettings, pll_instance, pll_settings
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.emit.black_box import BlackBox
from edgedec.hw.system.block_ram_system import OnChipSystem

__all__ = ["MEMORY_BYTES", "TOP", "OrangeCrabTop", "beside", "clocks", "platform"]

MEMORY_BYTES = 304 << 10  # 152 of the 208 blocks of an 85F; the accelerator and the link use the others
_OSCILLATOR_HZ = 48e6  # clock of the board
_ANY_BAUD = 9600  # baud of a line that is only estimated: it costs the same at any rate
_BUTTON_DOMAIN = "button"  # clock domain of the button
# Pins 0 and 1 of the header, which the Feather outline reserves for a serial line: to the board, and from the board.
_SERIAL = Resource(
    "uart",
    0,
    Subsignal("rx", Pins("0", dir="i", conn=("io", 0)), Attrs(PULLMODE="UP")),  # idle with nothing connected
    Subsignal("tx", Pins("1", dir="o", conn=("io", 0))),
    Attrs(IO_TYPE="LVCMOS33"),
)


def platform(device: str) -> Any:
    """Return the platform of amaranth_boards with a serial line on its header.

    Args:
        device: name of the part without its package, for example LFE5U-85F.

    Raises:
        UsageError: the OrangeCrab does not come with this device.
    """
    board = board_platform("orangecrab_r0_2", "OrangeCrabR0_2_{}Platform", device, title="OrangeCrab r0.2")
    board.add_resources([_SERIAL])
    return board


def clocks(config: AcceleratorConfig) -> PllSettings:
    """Return the settings of the PLL for the clocks of ``OrangeCrabTop.domains``.

    Raises:
        UsageError: the PLL cannot produce these clocks.
    """
    return pll_settings(_OSCILLATOR_HZ, (config.clock_hz,))


def beside(config: AcceleratorConfig) -> dict[str, Resources]:
    """Return the estimate of what stands beside the accelerator, by submodule.

    The memory's blocks are missing: they are counted as the board's memory.
    """
    parts = OnChipSystem(config, None, memory_bytes=MEMORY_BYTES, baud=_ANY_BAUD).resources_by_part
    return {**parts, "memory": replace(parts["memory"], bram18=0)}


class OrangeCrabTop(Elaboratable):
    """Connect an OnChipSystem to the pins of ``platform``.

    The LED is green while the clock runs, and red while the accelerator asks for its host. The button loads the FPGA
    anew; if it is held meanwhile, the FPGA stops in the bootloader, which waits for another bitstream over USB.

    Parameters:
        config: configuration of the accelerator; the PLL makes its clock_hz.
        accelerator: an Accelerator of that configuration.
        memory_bytes: bytes of block RAM.
        baud: bits per second of the line on the header.
        module: name of a module, synthesized separately, that replaces the system; None to include the system.

    Members:
        pll: settings of the PLL.
        system: the OnChipSystem.
        domains: clock domains of the system, as ``BlackBox`` takes them.
    """

    domains: Mapping[str, str] = MappingProxyType({"sync": ""})

    def __init__(
        self,
        config: AcceleratorConfig,
        accelerator: Any,
        *,
        memory_bytes: int = MEMORY_BYTES,
        baud: int = 1_000_000,
        module: str | None = None,
    ) -> None:
        self.pll = clocks(config)
        self.system = OnChipSystem(config, accelerator, memory_bytes=memory_bytes, baud=baud)
        self._module = module

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        system: Any = self.system
        if self._module is not None:
            system = BlackBox(self.system, module=self._module, domains=self.domains)
        m.submodules.system = system
        locked = self._clock(m, platform)
        serial = platform.request("uart", 0, dir={"rx": "-", "tx": "-"})
        m.submodules.receive = receive = io.Buffer("i", serial.rx)
        m.submodules.transmit = transmit = io.Buffer("o", serial.tx)
        m.d.comb += [system.receive.eq(receive.i), transmit.o.eq(system.transmit)]
        lamp = platform.request("rgb_led", 0, dir={"r": "-", "g": "-", "b": "-"})
        for name, lit in {"r": system.interrupt, "g": locked, "b": 0}.items():
            m.submodules[f"lamp_{name}"] = buffer = io.Buffer("o", getattr(lamp, name))
            m.d.comb += buffer.o.eq(lit)
        return m

    def _clock(self, m: Module, platform: Any) -> Signal:
        """Add the PLL's clock, and the oscillator's for the button, which must work whatever the PLL does."""
        m.submodules.oscillator = oscillator = io.Buffer("i", platform.request("clk", 0, dir="-"))
        m.domains.button = ClockDomain(_BUTTON_DOMAIN, reset_less=True)
        clock, locked = Signal(name="clock"), Signal()
        m.submodules.pll = pll_instance(self.pll, oscillator.i, [clock], locked)
        m.d.comb += ClockSignal(_BUTTON_DOMAIN).eq(oscillator.i)
        started_clock(m, platform, "sync", clock, locked, self.pll.output_hz[0])
        m.submodules.button = button = io.Buffer("i", platform.request("button", 0, dir="-"))
        m.submodules.program = program = io.Buffer("o", platform.request("program", 0, dir="-"))
        m.submodules.pressed = FFSynchronizer(button.i, program.o, o_domain=_BUTTON_DOMAIN)
        return locked


TOP = OrangeCrabTop
