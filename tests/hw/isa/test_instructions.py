from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import BundleError
from edgedec.hw.blocks.instruction_layouts import header_layout, layout
from edgedec.hw.isa.instructions import (
    FIELDS,
    INSTRUCTION_BYTES,
    OPTIONAL,
    SIGNED,
    Instruction,
    Opcode,
    ProgramHeader,
    pack,
    pack_program,
    unpack,
    unpack_program,
)


@st.composite
def instructions(draw: Any) -> Instruction:
    opcode = draw(st.sampled_from(Opcode))
    ranges = {"wait": (0, 1), "when": (0, 3)}
    for name, bits in FIELDS[opcode].items():
        ranges[name] = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if name in SIGNED else (0, (1 << bits) - 1)
    fields = {name: draw(st.integers(*of)) for name, of in ranges.items()}
    return Instruction(opcode, {name: value for name, value in fields.items() if value})


@given(instructions())
def test_a_packed_instruction_is_unpacked(instruction: Instruction) -> None:
    raw = pack(instruction)
    assert len(raw) == INSTRUCTION_BYTES
    assert unpack(raw) == instruction


@given(instructions())
def test_hardware_reads_the_same_fields(instruction: Instruction) -> None:
    fields = layout(instruction.opcode).from_bits(int.from_bytes(pack(instruction), "little"))
    assert fields["opcode"] == instruction.opcode
    for name in ("wait", "when", *FIELDS[instruction.opcode]):
        assert name in OPTIONAL or fields[name] == instruction[name], name
    rest = fields["unused"]  # the optional fields are its first bits, in their order
    for name in (name for name in FIELDS[instruction.opcode] if name in OPTIONAL):
        bits = FIELDS[instruction.opcode][name]
        assert rest & ((1 << bits) - 1) == instruction[name], name
        rest >>= bits
    assert rest == 0


@pytest.mark.rtl
@given(st.lists(instructions(), min_size=1, max_size=5), st.integers(0, (1 << 64) - 1))
def test_a_packed_program_has_its_header(sequence: list[Instruction], configuration: int) -> None:
    header = ProgramHeader(configuration=configuration, instructions=len(sequence), commit=len(sequence) - 1)
    raw = pack_program(header, sequence)
    assert unpack_program(raw) == (header, sequence)
    bits = header_layout().from_bits(int.from_bytes(raw[:INSTRUCTION_BYTES], "little"))
    assert (bits.configuration, bits.instructions, bits.commit) == (
        configuration,
        len(sequence),
        len(sequence) - 1,
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"elements": 1 << 16}, "elements of LOAD must be 0 to 65535, not 65536"),
        ({"blocks": 1}, "LOAD has no field 'blocks'; it has elements"),
        ({"opcode": 1}, "LOAD has no field 'opcode'"),
        ({"when": 4}, "when of LOAD must be 0 to 3, not 4"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        Instruction(Opcode.LOAD, fields)


def test_damaged_programs_are_refused() -> None:
    header = ProgramHeader(configuration=1, instructions=2, commit=1)
    raw = pack_program(header, [Instruction(Opcode.LOAD, {"elements": 1}), Instruction(Opcode.STOP, {})])
    for cut in (0, 31, 64, 95):
        with pytest.raises(BundleError, match=r"cut short|no program"):
            unpack_program(raw[:cut])
    with pytest.raises(BundleError, match="does not begin with 'edecprog'"):
        unpack_program(b"x" + raw[1:])
    with pytest.raises(BundleError, match="instruction 1: an instruction has the opcode 15"):
        unpack_program(raw[:64] + b"\x0f" + raw[65:])
    with pytest.raises(BundleError, match="instruction 0: an instruction LOAD has bits beyond its fields"):
        unpack_program(raw[:60] + b"\x01" + raw[61:])
