"""The hardware hand-off file (.hwh) that lies beside a bitstream: what it says of the accelerator, checked before anything
is loaded. A bitstream says nothing of itself, and one that does not belong to its configuration stops the whole board.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from edgedec.errors import BundleError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import ISA_VERSION
from edgedec.hw.isa.ip_core import CLOCK, HASH_PARAMETER, ISA_PARAMETER, RTLIL_PARAMETER, VLNV, memory_interface
from edgedec.hw.isa.registers import REGISTER_MAP

__all__ = ["Handoff", "check_handoff", "read_handoff"]

_MOST_BYTES = 64 << 20  # Vivado writes one or two MB
_AGAIN = "copy bitstream and .hwh again, from one build"
# A clock of the processing system by its port's name.
_PS_CLOCK = re.compile(r"(?:pl_clk|FCLK_CLK)([0-3])")
# Width parameter of the ports to memory, by the bus interface's name: HPC are GP0 and GP1 of a Zynq UltraScale+, HP GP2 on.
_WIDTHS = {f"S_AXI_HP{n}_FPD": f"C_SAXIGP{n + 2}_DATA_WIDTH" for n in range(4)}
_WIDTHS |= {f"S_AXI_HPC{n}_FPD": f"C_SAXIGP{n}_DATA_WIDTH" for n in range(2)}
_WIDTHS |= {f"S_AXI_HP{n}": f"C_S_AXI_HP{n}_DATA_WIDTH" for n in range(4)}


@dataclass(frozen=True, kw_only=True)
class Handoff:
    """Members:
    path: the file.
    name: instance name of the accelerator in the block design, with its hierarchy before it.
    address: physical address of its registers.
    size_bytes: size of their address space, in bytes.
    configuration_hash: hash of the configuration that it was generated from.
    isa_version: version of its instruction set.
    rtlil_hash: hash of the RTLIL that it was built from; 0 if there is none.
    clock: number of the clock of the processing system that drives it, 0 to 3; None: another source.
    clock_hz: frequency of that clock by the build, in Hz; None: the file does not say.
    port_bits: width of each of its memory ports, in bits.
    memory_bits: width of the port of the processing system that each is wired to; None behind an interconnect.
    system: module name of the processing system, as in "zynq_ultra_ps_e".
    memory_ports: names of the ports of the processing system that it is wired to, directly or not, in their order.
    """

    path: Path
    name: str
    address: int
    size_bytes: int
    configuration_hash: int
    isa_version: int
    rtlil_hash: int
    clock: int | None
    clock_hz: float | None
    port_bits: tuple[int, ...]
    memory_bits: tuple[int | None, ...]
    system: str
    memory_ports: tuple[str, ...]


class _NoDoctype(ElementTree.TreeBuilder):
    """Entities, which a file of a few lines can blow up with, come with a document type, and these files have none."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise BundleError("it has a document type")


def read_handoff(path: Path) -> Handoff:
    """Read the accelerator of a hand-off file.

    Source: MODULES/MODULE with PARAMETERS, PORTS, BUSINTERFACES and MEMORYMAP, as Vivado writes and pynq reads them.

    Raises:
        BundleError: missing, damaged, without the accelerator or with several; names the file and what is wrong.
    """
    root = _parse(path)
    modules = list(root.iter("MODULE"))
    found = [module for module in modules if module.get("VLNV") == VLNV]
    if len(found) != 1:
        others = sorted({module.get("VLNV", "?") for module in modules})
        shown = ", ".join(others[:8]) + (", ..." if len(others) > 8 else "")
        raise _wrong(path, f"it has {len(found)} blocks {VLNV}, not one; its blocks: {shown or 'none'}")
    (module,) = found
    systems = [one for one in modules if one.get("IS_PL") == "FALSE"]
    if len(systems) != 1:
        raise _wrong(path, f"it has {len(systems)} processing systems, not one")
    (system,) = systems
    address, size = _range(path, system, module.get("INSTANCE", ""))
    buses = _memory_buses(path, module)
    clock, clock_hz = _clock(path, module, system)
    return Handoff(
        path=path,
        name=module.get("FULLNAME", "").lstrip("/") or module.get("INSTANCE", ""),
        address=address,
        size_bytes=size,
        configuration_hash=_number(path, HASH_PARAMETER, _parameter(path, module, HASH_PARAMETER), 64),
        isa_version=_number(path, ISA_PARAMETER, _parameter(path, module, ISA_PARAMETER), 32),
        rtlil_hash=_number(path, RTLIL_PARAMETER, _parameter(path, module, RTLIL_PARAMETER), 64),
        clock=clock,
        clock_hz=clock_hz,
        port_bits=tuple(bits for _, bits in buses),
        memory_bits=tuple(_memory_bits(path, system, bus) for bus, _ in buses),
        system=system.get("MODTYPE", ""),
        memory_ports=_memory_ports(system),
    )


def check_handoff(handoff: Handoff, config: AcceleratorConfig) -> None:
    """Raises:
    BundleError: the accelerator in the file is of another instruction set or configuration; names both.
    """
    bits = 8 * config.port_bytes
    if handoff.isa_version != ISA_VERSION:
        raise _wrong(
            handoff.path,
            f"its accelerator has version {handoff.isa_version} of the instruction set ({ISA_PARAMETER}), this edgedec's "
            f"programs have {ISA_VERSION}",
            "build the bitstream again with this edgedec",
        )
    if handoff.configuration_hash != config.hash:
        raise _wrong(
            handoff.path,
            f"it is of configuration {handoff.configuration_hash:016x}, the program is for {config.hash:016x}",
            "take the bitstream that was built for this program, or compile the model for that configuration",
        )
    if handoff.port_bits != (bits,) * config.ports:
        raise _wrong(
            handoff.path,
            f"its memory ports are {list(handoff.port_bits)} bits wide, the configuration's {[bits] * config.ports}",
        )
    for port, found in enumerate(handoff.memory_bits):
        if found not in (None, bits):
            raise _wrong(
                handoff.path,
                f"{memory_interface(port)} of {bits} bits is wired to a port of the processing system of {found}",
                "give that port the same width in the block design, and build it again",
            )


def _parse(path: Path) -> ElementTree.Element:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise _wrong(path, f"it is larger than {_MOST_BYTES} bytes")
        return ElementTree.parse(path, ElementTree.XMLParser(target=_NoDoctype())).getroot()
    except OSError as error:
        raise _wrong(path, f"it cannot be read ({error.strerror or error})") from error
    except BundleError as error:
        raise error if str(path) in str(error) else _wrong(path, str(error)) from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # the last two: an encoding that is not known
        raise _wrong(path, f"it is damaged ({error})") from None


def _wrong(path: Path, what: str, next_: str = _AGAIN) -> BundleError:
    return BundleError(f"{path} does not describe an accelerator that can be loaded: {what}; {next_}")


def _parameter(path: Path, module: ElementTree.Element, name: str) -> str:
    for one in module.iter("PARAMETER"):
        if one.get("NAME") == name:
            return one.get("VALUE", "")
    raise _wrong(path, f"{module.get('INSTANCE', 'its block')} has no parameter {name}")


def _number(path: Path, name: str, text: str | None, bits: int) -> int:
    """Parse 0x and hexadecimal digits, or decimal digits."""
    if text is not None and re.fullmatch(r"0[xX][0-9a-fA-F]{1,32}|[0-9]{1,32}", text):
        value = int(text, 16 if text[1:2] in ("x", "X") else 10)
        if value < 1 << bits:
            return value
    raise _wrong(path, f"{name} is {reprlib.repr(text)}, no number of {bits} bits")


def _range(path: Path, system: ElementTree.Element, instance: str) -> tuple[int, int]:
    """Return the address and the size of the registers, in bytes."""
    for one in system.iter("MEMRANGE"):
        if one.get("INSTANCE") == instance and one.get("MEMTYPE") == "REGISTER":
            base = _number(path, "BASEVALUE", one.get("BASEVALUE"), 64)
            size = _number(path, "HIGHVALUE", one.get("HIGHVALUE"), 64) - base + 1
            if base % 4096 or size < REGISTER_MAP.bytes:
                raise _wrong(
                    path, f"{instance} has {size} bytes from {base:#x} on, its registers take {REGISTER_MAP.bytes}"
                )
            return base, size
    raise _wrong(path, f"the processing system has no address for {instance or 'the accelerator'}")


def _memory_buses(path: Path, module: ElementTree.Element) -> list[tuple[str, int]]:
    """Return the net and the width in bits of each memory port, in their order."""
    named = {bus.get("NAME"): bus for bus in module.iter("BUSINTERFACE")}
    found = list[tuple[str, int]]()
    while (bus := named.get(memory_interface(len(found)))) is not None:
        name = memory_interface(len(found))
        found.append((bus.get("BUSNAME", ""), _number(path, f"DATAWIDTH of {name}", bus.get("DATAWIDTH"), 16)))
    return found


def _memory_bits(path: Path, system: ElementTree.Element, net: str) -> int | None:
    """Return the width of the processing system's port on that net; pynq sets the port to it when it loads the bitstream."""
    for bus in system.iter("BUSINTERFACE"):
        parameter = _WIDTHS.get(bus.get("NAME", ""))
        if net and bus.get("BUSNAME") == net and parameter is not None:
            return _number(path, parameter, _parameter(path, system, parameter), 16)
    return None


def _memory_ports(system: ElementTree.Element) -> tuple[str, ...]:
    """Return the names of the processing system's ports to memory that something is wired to."""
    buses = {bus.get("NAME", ""): bus.get("BUSNAME", "") for bus in system.iter("BUSINTERFACE")}
    return tuple(name for name in _WIDTHS if buses.get(name, "__NOC__") not in ("", "__NOC__"))


def _clock(path: Path, module: ElementTree.Element, system: ElementTree.Element) -> tuple[int | None, float | None]:
    """Return the number of the processing system's clock and its frequency in Hz."""
    for port in module.iter("PORT"):
        if port.get("NAME") == CLOCK:
            net, stated = port.get("SIGNAME", ""), port.get("CLKFREQUENCY")
            hz = None if stated is None else float(_number(path, "CLKFREQUENCY", stated, 40))
            for source in system.iter("PORT"):
                match = _PS_CLOCK.fullmatch(source.get("NAME", ""))
                if match and net and source.get("SIGNAME") == net and source.get("DIR") == "O":
                    return int(match[1]), hz
            if not hz:
                raise _wrong(path, f"it says neither where {CLOCK} comes from nor how fast it is")
            return None, hz
    raise _wrong(path, f"the accelerator has no port {CLOCK}")
