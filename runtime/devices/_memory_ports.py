"""Settings of the processing system's ports to memory: how many commands a port may have under way, and their priority.

The ports stand at whatever the boot program or an earlier overlay left. The driver sets both registers of each direction of
each port that the accelerator is wired to, so that every start is the same:

- **Issuing capability** is the largest that the registers take. An accelerator keeps eight bursts under way at each port,
  which is what the port accepts; with fewer it does not cover the memory's latency (docs/accelerator.md).
- **Priority (QoS)** is 0, the lowest, which is also its value after a reset: a read stream that takes nearly all of the
  memory's time must not hold up the processor or a display. No measurement says that more would make it faster.

The widths of the ports are pynq's task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["MEMORY_PORTS", "REGISTER_BYTES", "MemoryPorts", "set_ports"]

REGISTER_BYTES = 0x20  # bytes of a port's registers up to the last one that is set

Write = Callable[[int, int, int], None]  # address of a port's registers, offset, value


@dataclass(frozen=True, kw_only=True)
class MemoryPorts:
    """The registers of the ports of one family.

    Members:
        addresses: address of the registers of each port, by the port's name in a hand-off file.
        read_commands, write_commands: offsets of the registers of the issuing capability.
        read_priority, write_priority: offsets of the registers of the priority, 0 (lowest) to 15.
        commands: largest value of the issuing capability: commands under way, less one.
        source: documents of these values.
    """

    addresses: Mapping[str, int]
    read_commands: int = 0x04
    read_priority: int = 0x08
    write_commands: int = 0x18
    write_priority: int = 0x1C
    commands: int
    source: str

    def settings(self) -> Iterator[tuple[int, int]]:
        """Yield offset and value of each register to set."""
        yield self.read_commands, self.commands
        yield self.write_commands, self.commands
        yield self.read_priority, 0
        yield self.write_priority, 0


# Registers by the module name of the processing system in a hand-off file.
MEMORY_PORTS: Mapping[str, MemoryPorts] = MappingProxyType(
    {
        "zynq_ultra_ps_e": MemoryPorts(
            addresses=MappingProxyType(
                {
                    **{f"S_AXI_HPC{n}_FPD": 0xFD36_0000 + 0x1_0000 * n for n in range(2)},
                    **{f"S_AXI_HP{n}_FPD": 0xFD38_0000 + 0x1_0000 * n for n in range(4)},
                }
            ),
            commands=15,
            source="AMD UG1087, AFIFM: RDISSUE and WRISSUE have 4 bits; addresses and fields as in ccbrown/"
            "zynq-ultrascale-plus-rs, afifm.rs, which is generated from it",
        ),
        "processing_system7": MemoryPorts(
            addresses=MappingProxyType({f"S_AXI_HP{n}": 0xF800_8000 + 0x1000 * n for n in range(4)}),
            commands=7,
            source="AMD UG585, axi_hp: AFI_RDCHAN_ISSUINGCAP and AFI_WRCHAN_ISSUINGCAP have 3 bits and are 7 after a reset; "
            "addresses as in DeanoC/ikuy_old, axi_hp.md, which is generated from it",
        ),
    }
)


def set_ports(system: str, ports: Iterable[str], write: Write) -> int:
    """Set the ports to memory. They must be idle.

    Args:
        system: module name of the processing system.
        ports: names of the ports.
        write: writes a 32-bit register.

    Returns:
        the number of ports that were set; ports of an unknown system, or without such registers, are left alone.
    """
    family = MEMORY_PORTS.get(system)
    if family is None:
        return 0
    addresses = [family.addresses[name] for name in ports if name in family.addresses]
    for address in addresses:
        for offset, value in family.settings():
            write(address, offset, value)
    return len(addresses)
