"""Bit layouts of instructions and of the program's header, each 256 bits."""

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from edgedec.hw.isa.instructions import COMMON, FIELDS, INSTRUCTION_BYTES, SIGNED, Opcode

__all__ = ["header_layout", "layout"]


def layout(opcode: Opcode) -> data.StructLayout:
    """Return the fields of an instruction."""
    fields = {**COMMON, **FIELDS[opcode]}
    members = {name: signed(bits) if name in SIGNED else unsigned(bits) for name, bits in fields.items()}
    return data.StructLayout({**members, "unused": unsigned(8 * INSTRUCTION_BYTES - sum(fields.values()))})


def header_layout() -> data.StructLayout:
    """Return the fields of ``Header`` of edgedec.hw.isa.instructions."""
    return data.StructLayout(
        {"magic": unsigned(64), "configuration": unsigned(64), "instructions": 32, "commit": 32, "unused": unsigned(64)}
    )
