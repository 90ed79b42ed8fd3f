"""The top of a ULX3S: clocks, pins, and a UartSystem between them. It has not run on a board yet."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from amaranth.hdl import ClockSignal, Const, Elaboratable, Instance, Module, Signal
from amaranth.lib import io

from edgedec.boards.flows.ecp5.clock import started_clock
from edgedec.boards.flows.ecp5.phase_samples import QUARTER_DOMAIN, SAMPLE_REGISTERS, PhaseSamples
from edgedec.boards.flows.ecp5.pins import board_platform
from edgedec.boards.flows.ecp5.pll import PllSettings, pll_instance, pll_settings
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.emit.black_box import BlackBox
from edgedec.hw.system.sdram.chip import IS42S16160G, SdramChip
from edgedec.hw.system.sdram_system import MEMORY_DOMAIN, UartSystem

__all__ = ["MEMORY_HZ", "PIN_REGISTERS", "TOP", "Ulx3sTop", "beside", "clocks", "platform"]

MEMORY_HZ = 100e6  # nextpnr-ecp5 reached 112 MHz with the embedded model's accelerator; the PLL can make it with 80 MHz
_OSCILLATOR_HZ = 25e6  # clock of the board
PIN_REGISTERS = 1 + SAMPLE_REGISTERS  # registers at the pins besides the sequencer's: one outwards, the others inwards
_WIFI_PINS = ("en", "tx", "rx", "gpio0", "gpio5", "gpio16", "gpio17")  # pins to the ESP32, of which one is driven
_ANY_BAUD = 9600  # baud of a line that is only estimated: it costs the same at any rate


def platform(device: str) -> Any:
    """Return the platform of amaranth_boards.

    Args:
        device: name of the part without its package, for example LFE5U-85F.

    Raises:
        UsageError: the ULX3S does not come with this device.
    """
    return board_platform("ulx3s", "ULX3S_{}_Platform", device, title="ULX3S")


def clocks(config: AcceleratorConfig, memory_hz: float = MEMORY_HZ) -> PllSettings:
    """Return the settings of the PLL for the clocks of ``Ulx3sTop.domains``.

    Raises:
        UsageError: the PLL cannot produce these clocks.
    """
    return pll_settings(_OSCILLATOR_HZ, (config.clock_hz, memory_hz))


def beside(config: AcceleratorConfig) -> dict[str, Resources]:
    """Return the estimate of what stands beside the accelerator, by submodule."""
    system = UartSystem(config, None, chip=IS42S16160G, memory_hz=MEMORY_HZ, baud=_ANY_BAUD)
    return system.resources_by_part


class Ulx3sTop(Elaboratable):
    """Connect a UartSystem to the pins of amaranth_boards' ULX3S platforms.

    The chip's clock is the inverted clock of the controller: commands change half a cycle before the chip samples them.
    Its data has the rest of that cycle and the time of the pins, at the nominal phase. How long that takes is known of no
    board, so the data are sampled at each quarter of a cycle, and the host finds the phase that the system uses.

    Parameters:
        config: configuration of the accelerator; the PLL makes its clock_hz.
        accelerator: an Accelerator of that configuration.
        chip, memory_hz: the SDRAM and its clock in Hz.
        baud: bits per second of the USB serial port.
        module: name of a module, synthesized separately, that replaces the system; None to include the system.

    Members:
        pll: settings of the PLL.
        system: the UartSystem.
        domains: clock domains of the system, as ``BlackBox`` takes them.
    """

    domains: Mapping[str, str] = MappingProxyType({"sync": "", MEMORY_DOMAIN: f"{MEMORY_DOMAIN}_"})

    def __init__(
        self,
        config: AcceleratorConfig,
        accelerator: Any,
        *,
        chip: SdramChip = IS42S16160G,
        memory_hz: float = MEMORY_HZ,
        baud: int = 3_000_000,
        module: str | None = None,
    ) -> None:
        self.pll = clocks(config, memory_hz)
        self.system = UartSystem(
            config, accelerator, chip=chip, memory_hz=memory_hz, baud=baud, registers=PIN_REGISTERS
        )
        self._module = module

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        system: Any = self.system
        if self._module is not None:
            system = BlackBox(self.system, module=self._module, domains=self.domains)
        m.submodules.system = system
        self._clocks(m, platform)
        serial = platform.request("uart", 0, dir={"rx": "-", "tx": "-", "rts": "-", "dtr": "-"})
        m.submodules.receive = receive = io.Buffer("i", serial.rx)
        m.submodules.transmit = transmit = io.Buffer("o", serial.tx)
        lamps = [platform.request("led", number, dir="-") for number in range(2)]
        for number, (lamp, lit) in enumerate(zip(lamps, (system.ready, system.interrupt), strict=True)):
            m.submodules[f"lamp{number}"] = buffer = io.Buffer("o", lamp)
            m.d.comb += buffer.o.eq(lit)
        m.d.comb += [system.receive.eq(receive.i), transmit.o.eq(system.transmit)]
        # The firmware that the ESP32 is sold with takes the FPGA over, and loads another bitstream, when this pin is low.
        wifi = platform.request("esp32", 0, dir=dict.fromkeys(_WIFI_PINS, "-"))
        m.submodules.wifi_gpio0 = high = io.Buffer("o", wifi.gpio0)
        m.d.comb += high.o.eq(1)
        self._memory(m, platform, system.memory)
        return m

    def _clocks(self, m: Module, platform: Any) -> None:
        m.submodules.oscillator = oscillator = io.Buffer("i", platform.request("clk25", 0, dir="-"))
        clocks, locked = [Signal(name=f"clock{number}") for number in range(2)], Signal()
        quarter = Signal(name="clock_quarter")
        m.submodules.pll = pll_instance(self.pll, oscillator.i, clocks, locked, quarter=quarter)
        for domain, clock, hz in zip(("sync", MEMORY_DOMAIN), clocks, self.pll.output_hz, strict=True):
            started_clock(m, platform, domain, clock, locked, hz)
        started_clock(m, platform, QUARTER_DOMAIN, quarter, locked, self.pll.output_hz[-1])

    def _memory(self, m: Module, platform: Any, chip: Any) -> None:
        """Add registers at all pins of the chip, and the inverted clock."""
        names = ("clk", "clk_en", "cs", "we", "cas", "ras", "ba", "a", "dq", "dqm")
        ports = platform.request("sdram", 0, dir=dict.fromkeys(names, "-"))
        low_active = {"we": chip.we_n, "cas": chip.cas_n, "ras": chip.ras_n}
        high = {"clk_en": chip.cke, "ba": chip.bank, "a": chip.address, "dqm": chip.mask}
        for name in ("cs", *low_active, *high):
            m.submodules[f"memory_{name}"] = buffer = io.FFBuffer("o", getattr(ports, name), o_domain=MEMORY_DOMAIN)
            value: Any = 1 if name == "cs" else ~low_active[name] if name in low_active else high[name]
            m.d.comb += buffer.o.eq(value)  # the platform's ports invert active-low signals
        for bit in range(len(ports.dq)):
            # Registers at the pin outwards, as FFBuffer has them, which would also have one inwards.
            m.submodules[f"memory_dq{bit}"] = pin = io.Buffer("io", ports.dq[bit])
            off = Signal(name=f"memory_dq{bit}_off")
            m.submodules[f"memory_dq{bit}_o"] = _at_the_pin(chip.data_out[bit], pin.o)
            m.submodules[f"memory_dq{bit}_off"] = _at_the_pin(~chip.data_drive, off)
            m.submodules[f"memory_dq{bit}_samples"] = samples = PhaseSamples(domain=MEMORY_DOMAIN)
            m.d.comb += [pin.oe.eq(~off), samples.pin.eq(pin.i)]
            m.d.comb += [
                chip.data_in[len(ports.dq) * phase + bit].eq(samples.samples[phase])
                for phase in range(len(samples.samples))
            ]
        m.submodules.memory_clock = clock = io.DDRBuffer("o", ports.clk, o_domain=MEMORY_DOMAIN)
        m.d.comb += [clock.o[0].eq(0), clock.o[1].eq(1)]


def _at_the_pin(value: Any, output: Any) -> Instance:
    """Return a register at a pin."""
    return Instance("OFS1P3DX", i_SCLK=ClockSignal(MEMORY_DOMAIN), i_SP=Const(1), i_CD=Const(0), i_D=value, o_Q=output)


TOP = Ulx3sTop
