"""Test that what the hardware takes apart is what the compiler packs."""

from __future__ import annotations

import pytest
from amaranth.hdl import Const
from amaranth.lib import data

from edgedec.hw.blocks.instruction_layouts import header_layout, layout, optional
from edgedec.hw.isa.instructions import FIELDS, OPTIONAL, Instruction, Opcode, pack

OPTIONAL_FIELDS = [(opcode, name) for opcode in Opcode for name in FIELDS[opcode] if name in OPTIONAL]


def test_the_header_has_32_bytes() -> None:
    assert header_layout().size == 256


@pytest.mark.parametrize("opcode", Opcode)
def test_an_instruction_has_32_bytes(opcode: Opcode) -> None:
    assert layout(opcode).size == 8 * len(pack(Instruction(opcode, {}))) == 256


@pytest.mark.parametrize(("opcode", "name"), OPTIONAL_FIELDS)
def test_an_optional_field_has_all_of_its_bits_and_none_of_another_field(opcode: Opcode, name: str) -> None:
    """Set the field alone, and then every field but this one."""
    most = {field: (1 << bits) - 1 for field, bits in FIELDS[opcode].items() if field in OPTIONAL}
    for fields in ({name: most[name]}, {**most, name: 0}):
        bits = int.from_bytes(pack(Instruction(opcode, fields)), "little")
        found = optional(opcode, data.View(layout(opcode), Const(bits, 256)), name)
        assert Const.cast(found).value == fields[name]
        assert len(found) == FIELDS[opcode][name]
