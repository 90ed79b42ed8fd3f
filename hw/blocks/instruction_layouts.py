"""Bit layouts of instructions and of the program's header, each 256 bits."""

from typing import Any

from amaranth.hdl import Value, signed, unsigned
from amaranth.lib import data

from edgedec.hw.isa.instructions import COMMON, FIELDS, INSTRUCTION_BYTES, OPTIONAL, SIGNED, Opcode

__all__ = ["header_layout", "layout", "optional"]


def layout(opcode: Opcode) -> data.StructLayout:
    """Return the fields of an instruction; those of OPTIONAL are the first bits of ``unused``.

    An optional field thus changes nothing in an accelerator that does not read it.
    """
    fields = {name: bits for name, bits in {**COMMON, **FIELDS[opcode]}.items() if name not in OPTIONAL}
    members = {name: signed(bits) if name in SIGNED else unsigned(bits) for name, bits in fields.items()}
    return data.StructLayout({**members, "unused": unsigned(8 * INSTRUCTION_BYTES - sum(fields.values()))})


def optional(opcode: Opcode, view: Any, name: str) -> Value:
    """Return the bits of an optional field, from a view of the layout of its instruction."""
    at = 0
    for field, bits in FIELDS[opcode].items():
        if field == name:
            break
        at += bits if field in OPTIONAL else 0
    value: Value = view.unused[at : at + FIELDS[opcode][name]]
    return value


def header_layout() -> data.StructLayout:
    """Return the fields of ``Header`` of edgedec.hw.isa.instructions."""
    return data.StructLayout(
        {
            "magic": unsigned(64),
            "configuration": unsigned(64),
            "instructions": 32,
            "commit": 32,
            "isa_version": unsigned(64),
        }
    )
