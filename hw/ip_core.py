"""What the accelerator is called where it is a block of a larger design: the names that the block design, the hardware
hand-off file and the driver on the board agree on.
"""

from edgedec.hw.accelerator_registers import REGISTER_MAP

__all__ = [
    "CLOCK",
    "HASH_PARAMETER",
    "INSTANCE",
    "INTERRUPT",
    "REGISTERS",
    "REGISTER_BYTES",
    "RESET",
    "VLNV",
    "memory_interface",
]

VLNV = "edgedec:edgedec:accelerator:1.0"  # vendor, library, name, version of the register map's first digit
INSTANCE = "accelerator_0"
CLOCK, RESET, INTERRUPT = "clk", "rst_n", "interrupt"  # ports
REGISTERS = "s_axi"  # bus interface of the registers
HASH_PARAMETER = "CONFIGURATION_HASH"  # AcceleratorConfig.hash, as 0x and 16 hexadecimal digits
REGISTER_BYTES = 1 << max(12, (REGISTER_MAP.bytes - 1).bit_length())  # of address space; 4 KiB are the least of a bus


def memory_interface(port: int) -> str:
    """Bus interface of a read port; the write port shares the first one's."""
    return f"m_axi_{port}"
