"""Test that what the hardware takes apart is as long as what the compiler packs."""

from __future__ import annotations

import pytest

from edgedec.hw.blocks.instruction_layouts import header_layout, layout
from edgedec.hw.isa.instructions import Instruction, Opcode, pack


def test_the_header_has_32_bytes() -> None:
    assert header_layout().size == 256


@pytest.mark.parametrize("opcode", Opcode)
def test_an_instruction_has_32_bytes(opcode: Opcode) -> None:
    assert layout(opcode).size == 8 * len(pack(Instruction(opcode, {}))) == 256
