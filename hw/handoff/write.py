"""The hardware hand-off file (.hwh) of an accelerator on a Zynq: what pynq and edgedec's driver read of a block design.

Vivado writes its own when it builds a design, thousands of lines. This one holds what both readers need of it: the
processing system with its clock and its ports' widths, the accelerator with its registers, the interrupt controller
between them. It stands in for Vivado's where there is no Vivado: in tests, and beside a project that was not built. Where
the open tools build the design, there is no other one, and edgedec is its author.

    processing system --M_AXI--> accelerator, interrupt controller     registers
    accelerator --m_axi_0...--> ports to memory of the processing system, one each, directly
    accelerator --> interrupt controller --> processing system         interrupt: pynq knows no direct ones
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from edgedec.errors import UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import ISA_VERSION
from edgedec.hw.isa.ip_core import (
    CLOCK,
    HASH_PARAMETER,
    INSTANCE,
    INTERRUPT,
    ISA_PARAMETER,
    REGISTER_BYTES,
    REGISTERS,
    RESET,
    RTLIL_PARAMETER,
    VLNV,
    memory_interface,
)
from edgedec.hw.isa.register_map import Access, Register
from edgedec.hw.isa.registers import REGISTER_MAP

__all__ = ["CONTROLLER", "CONTROLLER_BYTES", "FAMILIES", "ProcessingSystem", "write_hwh"]

CONTROLLER = "axi_intc_0"
CONTROLLER_BYTES = 0x10000  # address space of its registers
_ACCESS = {
    Access.CONSTANT: "read-only",
    Access.READ_ONLY: "read-only",
    Access.READ_WRITE: "read-write",
    Access.WRITE_ONE_TO_CLEAR: "read-write",
    Access.PULSE: "write-only",
}
_MOST_DIVISOR = 63


@dataclass(frozen=True, kw_only=True)
class ProcessingSystem:
    """Names and addresses that differ between the families.

    Members:
        arch: ARCH in SYSTEMINFO.
        name, module, vlnv: identifiers of its block.
        master: its bus to registers. clock, interrupt, reset: its ports.
        accelerator_address, controller_address: in the master's range.
        pll_hz: frequency of the source of the fabric's clocks, as boards set it; source: its name.
        memory, width: names of its ports to memory by number, and of the parameter for their width.
        widths: possible widths of these ports, in bits.
        enable, divisor, select, frequency: parameters of a clock, by its number.

    Source: names as in .hwh files that Vivado wrote and in pynqmetadata's models; UG1085 and UG585 for the clocks.
    """

    arch: str
    name: str
    module: str
    vlnv: str
    master: str
    clock: str
    interrupt: str
    reset: str
    accelerator_address: int
    controller_address: int
    pll_hz: float
    source: str
    memory: str
    width: str
    first_width: int
    widths: tuple[int, ...]
    enable: str
    divisor: str
    select: str
    frequency: str


FAMILIES = {
    "zynq-ultrascale+": ProcessingSystem(
        arch="zynquplus",
        name="zynq_ultra_ps_e_0",
        module="zynq_ultra_ps_e",
        vlnv="xilinx.com:ip:zynq_ultra_ps_e:3.5",
        master="M_AXI_HPM0_FPD",
        clock="pl_clk{}",
        interrupt="pl_ps_irq0",
        reset="pl_resetn0",
        accelerator_address=0xA000_0000,
        controller_address=0xA001_0000,
        pll_hz=33.333e6 * 90 / 2,
        source="IOPLL",
        memory="S_AXI_HP{}_FPD",
        width="C_SAXIGP{}_DATA_WIDTH",
        first_width=2,
        widths=(32, 64, 128),
        enable="PSU__FPGA_PL{}_ENABLE",
        divisor="PSU__CRL_APB__PL{}_REF_CTRL__DIVISOR{}",
        select="PSU__CRL_APB__PL{}_REF_CTRL__SRCSEL",
        frequency="PSU__CRL_APB__PL{}_REF_CTRL__ACT_FREQMHZ",
    ),
    "zynq-7000": ProcessingSystem(
        arch="zynq",
        name="processing_system7_0",
        module="processing_system7",
        vlnv="xilinx.com:ip:processing_system7:5.5",
        master="M_AXI_GP0",
        clock="FCLK_CLK{}",
        interrupt="IRQ_F2P",
        reset="FCLK_RESET0_N",
        accelerator_address=0x43C0_0000,
        controller_address=0x4180_0000,
        pll_hz=1e9,
        source="IO PLL",
        memory="S_AXI_HP{}",
        width="C_S_AXI_HP{}_DATA_WIDTH",
        first_width=0,
        widths=(32, 64),
        enable="PCW_FPGA_FCLK{}_ENABLE",
        divisor="PCW_FCLK{}_PERIPHERAL_DIVISOR{}",
        select="PCW_FCLK{}_PERIPHERAL_CLKSRC",
        frequency="PCW_ACT_FPGA{}_PERIPHERAL_FREQMHZ",
    ),
}


def write_hwh(
    config: AcceleratorConfig,
    path: Path,
    *,
    family: str,
    part: str = "",
    rtlil_hash: int = 0,
    clock_hz: float | None = None,
    interrupt: bool = True,
    whole: bool = False,
) -> None:
    """Write the file of ``config`` on a part of that family.

    Args:
        family: name of an edgedec.board.Family.
        part: the device's ordering name.
        rtlil_hash: hash of the RTLIL of the hardware (``edgedec.hw.emit.stamping``); 0: there is none.
        clock_hz: requested clock; None is the configuration's. The file has the fastest clock of the divisors up to it.
        interrupt: wired; without, the driver looks at the registers again and again.
        whole: whether the file is of a design that edgedec has made itself, and no stand-in for Vivado's.

    Raises:
        UsageError: no such family, or its ports cannot be as wide as the configuration's.
    """
    if family not in FAMILIES:
        raise UsageError(f"there is no hand-off file for family {family!r}; there is for {', '.join(FAMILIES)}")
    system, bits = FAMILIES[family], 8 * config.port_bytes
    if bits not in system.widths:
        raise UsageError(
            f"a port to memory of family {family} is {', '.join(map(str, system.widths))} bits wide, the configuration's "
            f"are {bits}; change beat_bytes or ports"
        )
    divisors = _divisors(system.pll_hz, config.clock_hz if clock_hz is None else clock_hz)
    hz = system.pll_hz / (divisors[0] * divisors[1])
    author = "none: written by edgedec" + (", which made the design without Vivado" if whole else "")
    root = ElementTree.Element("EDKSYSTEM", EDWVERSION="1.2", TIMESTAMP="", VIVADOVERSION=author)
    _add(root, "SYSTEMINFO", ARCH=system.arch, DEVICE=part, NAME="edgedec")
    _add(root, "EXTERNALPORTS")
    _add(root, "EXTERNALINTERFACES")
    modules = _add(root, "MODULES")
    _accelerator(modules, system, config, hz, interrupt=interrupt, rtlil_hash=rtlil_hash)
    if interrupt:
        _controller(modules, system, hz)
    _processing_system(modules, system, config, divisors, hz, interrupt=interrupt)
    ElementTree.indent(root)
    ElementTree.ElementTree(root).write(path, encoding="UTF-8", xml_declaration=True)


def _add(parent: ElementTree.Element, tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, attributes)


def _divisors(pll_hz: float, wanted_hz: float) -> tuple[int, int]:
    """Two divisors of at most 63 for the fastest clock that is not faster than wanted."""
    slack = 1 + 1e-3  # a board's crystal is 33.333 MHz: 250 MHz are 249.9975
    pairs = [(one, two) for one in range(1, _MOST_DIVISOR + 1) for two in range(1, one + 1)]
    fitting = [pair for pair in pairs if pll_hz / (pair[0] * pair[1]) <= wanted_hz * slack]
    if not fitting:
        raise UsageError(f"the fabric's clock is {pll_hz / _MOST_DIVISOR**2:.0f} Hz or more, not {wanted_hz:.0f}")
    return min(fitting, key=lambda pair: (pair[0] * pair[1], pair[0]))


def _module(modules: ElementTree.Element, name: str, vlnv: str, **attributes: str) -> dict[str, ElementTree.Element]:
    """A block and the lists in it."""
    kind = vlnv.split(":")[2]
    attributes = {"MODTYPE": kind, "VLNV": vlnv, "IPTYPE": "PERIPHERAL", "IS_ENABLE": "1", **attributes}
    module = _add(modules, "MODULE", FULLNAME=f"/{name}", INSTANCE=name, **attributes)
    lists = ("ADDRESSBLOCKS", "PARAMETERS", "PORTS", "BUSINTERFACES", "MEMORYMAP")
    return {tag: _add(module, tag) for tag in lists}


def _parameters(lists: dict[str, ElementTree.Element], **values: object) -> None:
    for name, value in values.items():
        _add(lists["PARAMETERS"], "PARAMETER", NAME=name, VALUE=str(value))


def _port(
    lists: dict[str, ElementTree.Element],
    name: str,
    direction: str,
    kind: str,
    net: str,
    *to: tuple[str, str],
    **more: str,
) -> None:
    port = _add(lists["PORTS"], "PORT", NAME=name, DIR=direction, SIGIS=kind, SIGNAME=net, **more)
    connections = _add(port, "CONNECTIONS")
    for instance, other in to:
        _add(connections, "CONNECTION", INSTANCE=instance, PORT=other)


def _bus(lists: dict[str, ElementTree.Element], name: str, role: str, net: str, bits: int) -> None:
    vlnv = "xilinx.com:interface:aximm:1.0"
    bus = _add(
        lists["BUSINTERFACES"], "BUSINTERFACE", BUSNAME=net, DATAWIDTH=str(bits), NAME=name, TYPE=role, VLNV=vlnv
    )
    _add(bus, "PARAMETER", NAME="DATA_WIDTH", VALUE=str(bits))
    _add(bus, "PORTMAPS")


def _memory_range(lists: dict[str, ElementTree.Element], **attributes: Any) -> None:
    numbers = {name: f"{attributes.pop(name):#010x}" for name in ("BASEVALUE", "HIGHVALUE")}
    _add(lists["MEMORYMAP"], "MEMRANGE", **numbers, **attributes)


def _accelerator(
    modules: ElementTree.Element,
    system: ProcessingSystem,
    config: AcceleratorConfig,
    hz: float,
    *,
    interrupt: bool,
    rtlil_hash: int,
) -> None:
    lists = _module(modules, INSTANCE, VLNV, IS_PL="TRUE")
    _parameters(lists, **{HASH_PARAMETER: f"{config.hash:#018x}", "PORTS": config.ports})
    _parameters(lists, **{ISA_PARAMETER: ISA_VERSION, RTLIL_PARAMETER: f"{rtlil_hash:#018x}"})
    block = _add(
        lists["ADDRESSBLOCKS"],
        "ADDRESSBLOCK",
        INTERFACE=REGISTERS,
        NAME="reg0",
        RANGE=str(REGISTER_BYTES),
        USAGE="register",
    )
    registers = _add(block, "REGISTERS")
    for register in REGISTER_MAP.registers:
        for index in range(register.count):
            _register(registers, register, index)
    _clocked(lists, system, hz, CLOCK)
    _port(lists, RESET, "I", "rst", f"{system.name}_{system.reset}", (system.name, system.reset), POLARITY="ACTIVE_LOW")
    wired = [(CONTROLLER, "intr")] if interrupt else []
    _port(lists, INTERRUPT, "O", "INTERRUPT", f"{INSTANCE}_{INTERRUPT}" if interrupt else "", *wired)
    _bus(lists, REGISTERS, "SLAVE", f"{system.name}_{system.master}", 32)
    for port in range(config.ports):
        name = memory_interface(port)
        _bus(lists, name, "MASTER", f"{INSTANCE}_{name}", 8 * config.port_bytes)
        _memory_range(
            lists,
            ADDRESSBLOCK=f"HP{port}_DDR_LOW",
            BASEVALUE=0,
            HIGHVALUE=0x7FFF_FFFF,
            INSTANCE=system.name,
            IS_DATA="TRUE",
            MASTERBUSINTERFACE=name,
            MEMTYPE="MEMORY",
            SLAVEBUSINTERFACE=system.memory.format(port),
        )


def _register(registers: ElementTree.Element, register: Register, index: int) -> None:
    name = register.name if register.count == 1 else f"{register.name}_{index}"
    one = _add(registers, "REGISTER", NAME=name)
    _properties(
        one,
        DESCRIPTION=register.description,
        ADDRESS_OFFSET=f"{register.offset + index * register.bytes:#x}",
        SIZE=8 * register.bytes,
        ACCESS=_ACCESS[register.access],
        IS_ENABLED="true",
    )
    fields = _add(one, "FIELDS")
    for field, lsb in register.positions():
        found = _add(fields, "FIELD", NAME=field.name)
        _properties(
            found,
            DESCRIPTION=field.description,
            BIT_OFFSET=lsb,
            BIT_WIDTH=field.bits,
            ACCESS=_ACCESS[register.access],
        )


def _properties(element: ElementTree.Element, **values: object) -> None:
    for name, value in values.items():
        _add(element, "PROPERTY", NAME=name, VALUE=str(value))


def _clocked(lists: dict[str, ElementTree.Element], system: ProcessingSystem, hz: float, name: str) -> None:
    clock = system.clock.format(0)
    _port(lists, name, "I", "clk", f"{system.name}_{clock}", (system.name, clock), CLKFREQUENCY=str(round(hz)))


def _controller(modules: ElementTree.Element, system: ProcessingSystem, hz: float) -> None:
    lists = _module(modules, CONTROLLER, "xilinx.com:ip:axi_intc:4.1", IS_PL="TRUE")
    _parameters(lists, C_KIND_OF_INTR="0xfffffffe", C_NUM_INTR_INPUTS=1, C_HAS_FAST=0)  # 0: sensitive to the level
    _clocked(lists, system, hz, "s_axi_aclk")
    _port(lists, "intr", "I", "INTERRUPT", f"{INSTANCE}_{INTERRUPT}", (INSTANCE, INTERRUPT))
    _port(lists, "irq", "O", "INTERRUPT", f"{CONTROLLER}_irq", (system.name, system.interrupt))
    _bus(lists, "s_axi", "SLAVE", f"{system.name}_{system.master}", 32)


def _processing_system(
    modules: ElementTree.Element,
    system: ProcessingSystem,
    config: AcceleratorConfig,
    divisors: tuple[int, int],
    hz: float,
    *,
    interrupt: bool,
) -> None:
    lists = _module(modules, system.name, system.vlnv, IS_PL="FALSE", MODTYPE=system.module)
    for number in range(4):
        used = number == 0
        found = divisors if used else (_MOST_DIVISOR, 1)
        _parameters(lists, **{system.enable.format(number): int(used), system.select.format(number): system.source})
        _parameters(lists, **{system.divisor.format(number, stage): value for stage, value in enumerate(found)})
        _parameters(lists, **{system.frequency.format(number): f"{(hz if used else 0) / 1e6:.6f}"})
    clock, net = system.clock.format(0), f"{system.name}_{system.clock.format(0)}"
    clocked = [(INSTANCE, CLOCK), *([(CONTROLLER, "s_axi_aclk")] if interrupt else [])]
    _port(lists, clock, "O", "clk", net, *clocked, CLKFREQUENCY=str(round(hz)))
    _port(lists, system.reset, "O", "rst", f"{system.name}_{system.reset}", (INSTANCE, RESET))
    if interrupt:
        _port(lists, system.interrupt, "I", "INTERRUPT", f"{CONTROLLER}_irq", (CONTROLLER, "irq"), LEFT="0", RIGHT="0")
    _bus(lists, system.master, "MASTER", f"{system.name}_{system.master}", 32)
    for port in range(config.ports):
        bits = 8 * config.port_bytes
        _parameters(lists, **{system.width.format(port + system.first_width): bits})
        _bus(lists, system.memory.format(port), "SLAVE", f"{INSTANCE}_{memory_interface(port)}", bits)
    slaves = [(INSTANCE, REGISTERS, system.accelerator_address, REGISTER_BYTES)]
    if interrupt:
        slaves.append((CONTROLLER, "s_axi", system.controller_address, CONTROLLER_BYTES))
    for instance, bus, base, size in slaves:
        _memory_range(
            lists,
            ADDRESSBLOCK="reg0",
            BASEVALUE=base,
            HIGHVALUE=base + size - 1,
            INSTANCE=instance,
            IS_DATA="TRUE",
            MASTERBUSINTERFACE=system.master,
            MEMTYPE="REGISTER",
            SLAVEBUSINTERFACE=bus,
        )
