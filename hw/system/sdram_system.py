"""The fabric of a board with an SDR SDRAM and a serial line: accelerator, memory controller, host link."""

from typing import Any

from amaranth.hdl import DomainRenamer, Module
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import Out, connect, flipped

from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.control.register_block import RegisterBlock
from edgedec.hw.isa.registers import BOARD_REGISTER_MAP, CAPTURE_PHASES, NOMINAL_PHASE, REGISTER_MAP
from edgedec.hw.memory.axi_crossing import AxiReadCrossing, AxiWriteCrossing
from edgedec.hw.system.sdram.chip import SdramChip
from edgedec.hw.system.sdram.controller import SdramController
from edgedec.hw.system.sdram.sequencer import pins
from edgedec.hw.system.serial_system import SerialSystem

__all__ = ["MEMORY_DOMAIN", "UartSystem"]

MEMORY_DOMAIN = "memory"  # clock domain of the memory controller


class UartSystem(SerialSystem):
    """Connect an accelerator, a host link and an SDRAM controller.

    There are two clocks: "sync" of config.clock_hz for accelerator and link, "memory" of memory_hz for the controller.
    The board provides the clock of the chip and the registers at the pins.

    Parameters:
        config: configuration of the accelerator, with one port of 4, 8 or 16 bytes.
        accelerator: an Accelerator of that configuration, or a component with its ports.
        chip: the memory chip.
        memory_hz: clock of the memory in Hz.
        baud: bits per second of the line.
        registers: see ``edgedec.hw.system.sdram.sequencer.Sequencer``.
        simulated: value that the link reports.

    Members:
        receive: In(1). Serial line from the host.
        transmit: Out(1). Serial line to the host.
        memory: Out(pins(chip)), in the domain "memory".
        ready: Out(1). The memory is initialized; in the domain "memory".
        interrupt: Out(1). Interrupt of the accelerator, for a lamp.

    Latency, Throughput: those of its parts.
    Source: derived here.
    """

    register_maps = (REGISTER_MAP, BOARD_REGISTER_MAP)

    def __init__(
        self,
        config: AcceleratorConfig,
        accelerator: Any,
        *,
        chip: SdramChip,
        memory_hz: float,
        baud: int,
        registers: int = 0,
        simulated: bool = False,
    ) -> None:
        self._controller = SdramController(
            chip=chip,
            clock_hz=memory_hz,
            data_bytes=config.port_bytes,
            reads=2,
            writes=2,
            address_bits=ADDRESS_BITS,
            registers=registers,
        )
        self._crossings = [
            (
                AxiReadCrossing(address_bits=ADDRESS_BITS, data_bytes=config.port_bytes),
                AxiWriteCrossing(address_bits=ADDRESS_BITS, data_bytes=config.port_bytes),
            )
            for _ in range(2)
        ]
        self._board_registers = RegisterBlock(register_map=BOARD_REGISTER_MAP)
        super().__init__(
            config,
            accelerator,
            memory_bytes=chip.bytes,
            phases=CAPTURE_PHASES,
            baud=baud,
            simulated=simulated,
            members={"memory": Out(pins(chip)), "ready": Out(1)},
        )

    @property
    def resources_by_part(self) -> dict[str, Resources]:
        crossings = total(crossing.resources for pair in self._crossings for crossing in pair)
        return {
            **super().resources_by_part,
            "controller": self._controller.resources,
            "crossings": crossings,
            "registers": self._board_registers.resources,
        }

    @property
    def inner_buses(self) -> dict[str, tuple[Any, str]]:
        ports = [f"{kind}{number}" for kind in ("read", "write") for number in range(len(self._crossings))]
        memory = {f"controller.{port}": (getattr(self._controller, port), MEMORY_DOMAIN) for port in ports}
        return {**super().inner_buses, **memory}

    def elaborate(self, platform: Any) -> Module:
        m, managers = self._linked(self._board_registers.bus)
        m.submodules.registers = registers = self._board_registers
        m.submodules.controller = DomainRenamer(MEMORY_DOMAIN)(self._controller)
        memory = self._controller
        # A phase is written while nothing reads, so its bits need not arrive together.
        m.submodules.phase = FFSynchronizer(
            registers.memory_phase, memory.phase, o_domain=MEMORY_DOMAIN, init=NOMINAL_PHASE, reset_less=False
        )
        m.submodules.is_ready = FFSynchronizer(memory.ready, registers.memory_status_ready)
        connect(m, memory.pins, flipped(self.memory))
        m.d.comb += self.ready.eq(memory.ready)
        for number, ((reads, writes), (read, write)) in enumerate(zip(managers, self._crossings, strict=True)):
            m.submodules[f"read_crossing{number}"] = read
            m.submodules[f"write_crossing{number}"] = write
            connect(m, reads, read.manager)
            connect(m, read.subordinate, getattr(memory, f"read{number}"))
            connect(m, writes, write.manager)
            connect(m, write.subordinate, getattr(memory, f"write{number}"))
        return m
