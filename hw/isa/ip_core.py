"""Names of the accelerator as a block of a larger design.

The block design, the hardware hand-off file and the driver on the board agree on them.
"""

from edgedec.hw.isa.registers import MAP_VERSION, REGISTER_MAP

__all__ = [
    "CLOCK",
    "HASH_PARAMETER",
    "INSTANCE",
    "INTERRUPT",
    "ISA_PARAMETER",
    "REGISTERS",
    "REGISTER_BYTES",
    "RESET",
    "RTLIL_PARAMETER",
    "VLNV",
    "memory_interface",
]

VLNV = f"edgedec:edgedec:accelerator:{MAP_VERSION}.0"  # vendor, library, name, and version: the register map's
INSTANCE = "accelerator_0"
CLOCK, RESET, INTERRUPT = "clk", "rst_n", "interrupt"  # names of the ports
REGISTERS = "s_axi"  # name of the bus interface of the registers
HASH_PARAMETER = "CONFIGURATION_HASH"  # parameter with AcceleratorConfig.hash, written as 0x and 16 hexadecimal digits
ISA_PARAMETER = "ISA_VERSION"  # parameter with the version of the instruction set, a decimal number
RTLIL_PARAMETER = "RTLIL_HASH"  # parameter with the hash of the RTLIL, written as the hash of the configuration is
REGISTER_BYTES = 1 << max(12, (REGISTER_MAP.bytes - 1).bit_length())  # address space; 4 KiB is a bus's smallest


def memory_interface(port: int) -> str:
    """Return the name of the bus interface of a read port; the write port shares the interface of port 0."""
    return f"m_axi_{port}"
