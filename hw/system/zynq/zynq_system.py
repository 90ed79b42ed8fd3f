"""The fabric of a Zynq-7000: the accelerator between the processing system's AXI3 ports."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.handoff.write import CONTROLLER_BYTES, FAMILIES
from edgedec.hw.isa.ip_core import REGISTER_BYTES
from edgedec.hw.system.zynq.axi3 import LONGEST_BURST, axi3, axi3_read
from edgedec.hw.system.zynq.interrupt_controller import InterruptController
from edgedec.hw.system.zynq.lite_bridge import LiteBridge
from edgedec.hw.system.zynq.memory_port import ID_BITS, PHYSICAL_BITS, PORT_BYTES, MemoryPort

__all__ = ["REGISTER_ID_BITS", "ZynqSystem"]

REGISTER_ID_BITS = 12  # bits of the ids of M_AXI_GP0
_FAMILY = FAMILIES["zynq-7000"]


class ZynqSystem(CostedComponent):
    """Connect an accelerator and its interrupt controller to the ports of a processing system.

    Registers are where the hand-off file says: the accelerator's at 0x43C0_0000, the controller's at 0x4180_0000.

    Parameters:
        config: configuration of the accelerator, with ports of 4 or 8 bytes and bursts of at most 16 beats.
        accelerator: an Accelerator of that configuration, or a component with its ports.

    Members:
        registers: In(AXI3 of 32 bits). For M_AXI_GP0.
        memory0 ..: Out(AXI3 of 64 bits). For S_AXI_HP0 and so on, one for each port of the accelerator; only the first
            one has write channels.
        interrupt: Out(1). Level of the interrupt, for IRQ_F2P.
        burst_beats: longest burst on these ports in beats, as configured; simulations watch it.

    Latency, Throughput: those of its parts.
    Source: derived here.
    """

    def __init__(self, config: AcceleratorConfig, accelerator: Any) -> None:
        if config.burst_beats > LONGEST_BURST:
            raise ValueError(f"config.burst_beats must be at most {LONGEST_BURST} for AXI3, not {config.burst_beats!r}")
        self._config, self._accelerator, self.burst_beats = config, accelerator, config.burst_beats
        self._bridge = LiteBridge(
            {
                "accelerator": (_FAMILY.accelerator_address, REGISTER_BYTES),
                "controller": (_FAMILY.controller_address, CONTROLLER_BYTES),
            },
            id_bits=REGISTER_ID_BITS,
        )
        self._controller = InterruptController()
        self._ports = [
            MemoryPort(data_bytes=config.port_bytes, address_bits=ADDRESS_BITS, writes=port == 0)
            for port in range(config.ports)
        ]
        widths = {"address_bits": PHYSICAL_BITS, "data_bytes": PORT_BYTES, "id_bits": ID_BITS}
        super().__init__(
            lambda: {
                "registers": In(axi3(address_bits=PHYSICAL_BITS, data_bytes=4, id_bits=REGISTER_ID_BITS)),
                **{
                    f"memory{port}": Out(axi3_read(**widths) if port else axi3(**widths))
                    for port in range(config.ports)
                },
                "interrupt": Out(1),
            }
        )

    @property
    def resources_by_part(self) -> dict[str, Resources]:
        """Estimate of what stands beside the accelerator, by submodule; for UltraScale+ as all estimates are."""
        ports = {f"port{number}": port.resources for number, port in enumerate(self._ports)}
        return {"bridge": self._bridge.resources, "controller": self._controller.resources, **ports}

    @property
    def inner_buses(self) -> dict[str, tuple[Any, str]]:
        """AXI buses between the parts by name, each with its clock domain, for monitors in simulations."""
        reads = {f"accelerator.read{number}": port.read for number, port in enumerate(self._ports)}
        buses = {
            "bridge.accelerator": self._bridge.accelerator,
            "bridge.controller": self._bridge.controller,
            **reads,
            "accelerator.write": self._ports[0].write,
        }
        return {name: (bus, "sync") for name, bus in buses.items()}

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.accelerator = accelerator = self._accelerator
        m.submodules.bridge, m.submodules.controller = bridge, controller = self._bridge, self._controller
        connect(m, flipped(self.registers), bridge.bus)
        connect(m, bridge.controller, controller.bus)
        connect(m, bridge.accelerator, accelerator.registers)
        m.d.comb += [controller.lines.eq(accelerator.interrupt), self.interrupt.eq(controller.interrupt)]
        for number, port in enumerate(self._ports):
            m.submodules[f"port{number}"] = port
            connect(m, getattr(accelerator, f"read{number}"), port.read)
            if number == 0:
                connect(m, accelerator.write, port.write)
            connect(m, port.memory, flipped(getattr(self, f"memory{number}")))
        return m
