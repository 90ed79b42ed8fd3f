from __future__ import annotations

from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.disassembler import describe, lines
from edgedec.hw.compiler.program import compile_model
from edgedec.hw.isa.instructions import Opcode
from tests.edgedec.reference.integer_profile.support.make_models import tiny


def test_every_instruction_is_described() -> None:
    model = tiny("native")[2]
    program = compile_model(model, config_for(model, context=64))
    for index, instruction in enumerate(program.instructions):
        description = describe(program, index)
        assert (description["index"], description["opcode"], description["name"]) == (
            index,
            instruction.opcode.name,
            program.names[index],
        )
        assert description["bytes"] == (
            instruction["beats"] * program.config.beat_bytes if instruction.opcode == Opcode.READ else 0
        )
    whole = list(lines(program))
    assert len(whole) == len(program.instructions)
    assert list(lines(program, 0)) == whole
    assert list(lines(program, 3, 2)) == whole[3:5]


def test_fields_that_are_zero_are_shown_where_they_say_something() -> None:
    """Check that the first source, sink and place have names, and other zeros are left out."""
    always = {
        Opcode.READ: {"destination", "base", "start", "beats"},
        Opcode.MATRIX: {"sink"},
        Opcode.VECTOR: {"source"},
    }
    model = tiny("native")[2]
    program = compile_model(model, config_for(model, context=64))
    for index, instruction in enumerate(program.instructions):
        shown = describe(program, index)["fields"]
        others = {name for name, value in instruction.fields.items() if value}
        assert set(shown) == always.get(instruction.opcode, set()) | others
