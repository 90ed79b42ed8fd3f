"""All that is in the fabric of a board with a serial line and no memory of its own: accelerator, block RAM, host link."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib.wiring import connect

from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.on_chip_memory import OnChipMemory
from edgedec.hw.resources import Resources
from edgedec.hw.serial_system import SerialSystem

__all__ = ["OnChipSystem"]


class OnChipSystem(SerialSystem):
    """One clock, "sync" of config.clock_hz.

    Parameters:
        config: of the accelerator; one port, of 4, 8 or 16 bytes.
        accelerator: an Accelerator of it, or what has its ports.
        memory_bytes: as ``OnChipMemory`` takes it.
        baud: of the line.
        simulated: the link says so.

    Members:
        receive: In(1); transmit: Out(1). Of the serial line.
        interrupt: Out(1). The accelerator's, for a lamp.

    Latency, Throughput: of its parts.
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
