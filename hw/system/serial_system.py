"""The common part of the fabric of all boards with a serial line: accelerator and host link. A subclass adds the memory."""

from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Module
from amaranth.lib.wiring import In, Out, connect

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.isa.link_protocol import Identity
from edgedec.hw.isa.register_map import RegisterMap
from edgedec.hw.isa.registers import BOARD_OFFSET, REGISTER_MAP
from edgedec.hw.system.host_link import HostLink
from edgedec.hw.system.register_split import RegisterSplit
from edgedec.hw.system.uart import UartReceiver, UartTransmitter

__all__ = ["SerialSystem", "identity_of"]


def identity_of(config: AcceleratorConfig, *, memory_bytes: int, simulated: bool, phases: int = 0) -> Identity:
    """Return the identity that the link of such a system reports."""
    return Identity(
        simulated=simulated,
        phases=phases,
        granule=config.port_bytes,
        memory_address=0,
        memory_bytes=memory_bytes,
        clock_hz=int(config.clock_hz),
    )


class SerialSystem(CostedComponent):
    """Connect accelerator, link and line, all in the domain "sync" of config.clock_hz.

    Parameters:
        config: configuration of the accelerator, with one port of 4, 8 or 16 bytes.
        accelerator: an Accelerator of that configuration, or a component with its ports.
        memory_bytes: size of the memory, which begins at address 0.
        baud: bits per second of the line.
        simulated: value that the link reports.
        members: additional ports of the subclass.
        phases: see ``Identity``.

    Members:
        receive: In(1). Serial line from the host.
        transmit: Out(1). Serial line to the host.
        interrupt: Out(1). Interrupt of the accelerator, for a lamp.
    """

    register_maps: tuple[RegisterMap, ...] = (REGISTER_MAP,)  # all registers that the link reaches

    def __init__(
        self,
        config: AcceleratorConfig,
        accelerator: Any,
        *,
        memory_bytes: int,
        baud: int,
        simulated: bool,
        members: Mapping[str, Any],
        phases: int = 0,
    ) -> None:
        if config.ports != 1:
            raise ValueError(f"config.ports must be 1 with one memory, not {config.ports!r}")
        self._config, self._accelerator = config, accelerator
        identity = identity_of(config, memory_bytes=memory_bytes, simulated=simulated, phases=phases)
        self._link = HostLink(identity, address_bits=ADDRESS_BITS)
        self._receiver = UartReceiver(clock_hz=config.clock_hz, baud=baud)
        self._transmitter = UartTransmitter(clock_hz=config.clock_hz, baud=baud)
        super().__init__(
            lambda: {"receive": In(1, init=1), "transmit": Out(1, init=1), **members, "interrupt": Out(1)},
        )

    @property
    def resources_by_part(self) -> dict[str, Resources]:
        """Estimate of what stands beside the accelerator, by submodule; for UltraScale+ as all estimates are."""
        return {"link": self._link.resources, "uart": self._receiver.resources + self._transmitter.resources}

    @property
    def inner_buses(self) -> dict[str, tuple[Any, str]]:
        """AXI buses between the parts by name, each with its clock domain, for monitors in simulations."""
        accelerator, link = self._accelerator, self._link
        return {
            "link.registers": (link.registers, "sync"),
            "accelerator.read0": (accelerator.read0, "sync"),
            "accelerator.write": (accelerator.write, "sync"),
            "link.read": (link.read, "sync"),
            "link.write": (link.write, "sync"),
        }

    def _linked(self, board_registers: Any = None) -> tuple[Module, list[tuple[Any, Any]]]:
        """Return the module without the memory, and the (read, write) managers to connect to the memory.

        Args:
            board_registers: bus of the registers from BOARD_OFFSET on; None without any.
        """
        m = Module()
        m.submodules.accelerator, m.submodules.link = accelerator, link = self._accelerator, self._link
        m.submodules.receiver, m.submodules.transmitter = self._receiver, self._transmitter
        connect(m, self._receiver.bytes, link.received)
        connect(m, link.sent, self._transmitter.bytes)
        if board_registers is None:
            connect(m, link.registers, accelerator.registers)
        else:
            m.submodules.split = split = RegisterSplit(offset=BOARD_OFFSET)
            connect(m, link.registers, split.manager)
            connect(m, split.below, accelerator.registers)
            connect(m, split.above, board_registers)
        m.d.comb += [
            self._receiver.line.eq(self.receive),
            self.transmit.eq(self._transmitter.line),
            link.interrupt.eq(accelerator.interrupt),
            self.interrupt.eq(accelerator.interrupt),
        ]
        return m, [(accelerator.read0, accelerator.write), (link.read, link.write)]
