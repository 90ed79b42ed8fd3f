"""The fabric of a board with a serial line and without a memory chip: accelerator, block RAM, host link."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib.wiring import connect

from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.system.block_ram import OnChipMemory
from edgedec.hw.system.serial_system import SerialSystem

__all__ = ["OnChipSystem"]


class OnChipSystem(SerialSystem):
    """Connect an accelerator, a host link and block RAM, in the domain "sync" of config.clock_hz.

    Parameters:
        config: configuration of the accelerator, with one port of 4, 8 or 16 bytes.
        accelerator: an Accelerator of that configuration, or a component with its ports.
        memory_bytes: size of the memory, see ``OnChipMemory``.
        baud: bits per second of the line.
        simulated: value that the link reports.

    Members:
        receive: In(1). Serial line from the host.
        transmit: Out(1). Serial line to the host.
        interrupt: Out(1). Interrupt of the accelerator, for a lamp.

    Latency, Throughput: those of its parts.
    Source: derived here.
    """

    def __init__(
        self, config: AcceleratorConfig, accelerator: Any, *, memory_bytes: int, baud: int, simulated: bool = False
    ) -> None:
        self._memory = OnChipMemory(memory_bytes=memory_bytes, data_bytes=config.port_bytes, address_bits=ADDRESS_BITS)
        super().__init__(config, accelerator, memory_bytes=memory_bytes, baud=baud, simulated=simulated, members={})

    @property
    def resources_by_part(self) -> dict[str, Resources]:
        return {**super().resources_by_part, "memory": self._memory.resources}

    def elaborate(self, platform: Any) -> Module:
        m, managers = self._linked()
        m.submodules.memory = memory = self._memory
        for number, (reads, writes) in enumerate(managers):
            connect(m, reads, getattr(memory, f"read{number}"))
            connect(m, writes, getattr(memory, f"write{number}"))
        return m
