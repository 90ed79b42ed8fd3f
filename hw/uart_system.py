"""All that is in the fabric of a board with an SDR SDRAM and a serial line: accelerator, memory controller, host link."""

from typing import Any

from amaranth.hdl import DomainRenamer, Module
from amaranth.lib.wiring import Out, connect, flipped

from edgedec.hw import axi_crossing
from edgedec.hw.axi_crossing import AxiReadCrossing, AxiWriteCrossing
from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.resources import Resources
from edgedec.hw.sdram import controller
from edgedec.hw.sdram.chip import SdramChip
from edgedec.hw.sdram.controller import SdramController
from edgedec.hw.sdram.sequencer import pins
from edgedec.hw.serial_system import SerialSystem, linked_parts

__all__ = ["MEMORY_DOMAIN", "UartSystem", "parts"]

MEMORY_DOMAIN = "memory"


class UartSystem(SerialSystem):
    """Two clocks: "sync" of config.clock_hz for accelerator and link, "memory" of memory_hz for the controller. The
    chip's own clock and the pins' registers are the board's.

    Parameters:
        config: of the accelerator; one port, of 4, 8 or 16 bytes.
        accelerator: an Accelerator of it, or what has its ports.
        chip: the memory.
        memory_hz: its clock.
        baud: of the line.
        capture: see ``edgedec.hw.sdram.sequencer.Sequencer``.
        simulated: the link says so.

    Members:
        receive: In(1); transmit: Out(1). Of the serial line.
        memory: Out(pins(chip)), in the domain "memory".
        ready: Out(1). The memory is initialized; domain "memory".
        interrupt: Out(1). The accelerator's, for a lamp.

    Latency, Throughput: of its parts.
    Source: derived here.
    """

    def __init__(
        self,
        config: AcceleratorConfig,
        accelerator: Any,
        *,
        chip: SdramChip,
        memory_hz: float,
        baud: int,
        capture: int = 0,
        simulated: bool = False,
    ) -> None:
        self._controller = SdramController(
            chip=chip,
            clock_hz=memory_hz,
            data_bytes=config.port_bytes,
            reads=2,
            writes=2,
            address_bits=ADDRESS_BITS,
            capture=capture,
        )
        super().__init__(
            config,
            accelerator,
            memory_bytes=chip.bytes,
            baud=baud,
            simulated=simulated,
            members={"memory": Out(pins(chip)), "ready": Out(1)},
        )

    def elaborate(self, platform: Any) -> Module:
        m, managers = self._linked()
        m.submodules.controller = DomainRenamer(MEMORY_DOMAIN)(self._controller)
        memory = self._controller
        connect(m, memory.pins, flipped(self.memory))
        m.d.comb += self.ready.eq(memory.ready)
        for number, (reads, writes) in enumerate(managers):
            m.submodules[f"read_crossing{number}"] = read = AxiReadCrossing(
                address_bits=ADDRESS_BITS, data_bytes=self._config.port_bytes
            )
            m.submodules[f"write_crossing{number}"] = write = AxiWriteCrossing(
                address_bits=ADDRESS_BITS, data_bytes=self._config.port_bytes
            )
            connect(m, reads, read.manager)
            connect(m, read.subordinate, getattr(memory, f"read{number}"))
            connect(m, writes, write.manager)
            connect(m, write.subordinate, getattr(memory, f"write{number}"))
        return m


def parts(config: AcceleratorConfig, *, chip: SdramChip, memory_hz: float) -> dict[str, Resources]:
    """What stands beside the accelerator, by submodule; estimated for UltraScale+ as all parts are, not calibrated yet."""
    crossing = axi_crossing.estimate(address_bits=ADDRESS_BITS, data_bytes=config.port_bytes)
    return {
        **linked_parts(config),
        "controller": controller.estimate(chip=chip, clock_hz=memory_hz, data_bytes=config.port_bytes),
        "crossings": crossing * 2,
    }
