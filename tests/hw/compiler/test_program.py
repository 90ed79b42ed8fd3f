"""Test where a program's buffers lie, what does not fit the bus, and which instructions are checked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgedec.errors import UnsupportedError
from edgedec.hw.compiler import program as module
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.lowering import Lowering
from edgedec.hw.compiler.memory_image import REGION_BYTES
from edgedec.hw.compiler.program import Program, compile_model, laid_out, lowered_sizes
from edgedec.hw.isa.instructions import Base, Instruction, Opcode, Sink
from edgedec.hw.isa.striping import block_bytes
from tests.edgedec.reference.integer_profile.support.make_models import KINDS, tiny


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("region_bytes", [REGION_BYTES, 2048])
def test_sizes_before_the_image_are_those_of_the_program(kind: str, region_bytes: int) -> None:
    model = tiny(kind)[2]
    config = config_for(model, context=64, instructions=256)
    lowering = Lowering(model, config, region_bytes=region_bytes)
    lowering.run()
    sizes = compile_model(model, config, region_bytes=region_bytes).sizes
    assert lowered_sizes(lowering) == sizes
    assert ("image 2" in sizes) == (region_bytes < REGION_BYTES)
    assert all(size <= region_bytes for name, size in sizes.items() if name.startswith("image"))


@pytest.mark.parametrize("ports", [1, 2, 4])
def test_buffers_are_whole_blocks_in_sequence(ports: int) -> None:
    block = block_bytes(ports)
    starts, end = laid_out({"a": 0, "b": 1, "c": block, "d": block + 1}, ports)
    assert starts == {"a": 0, "b": block, "c": 2 * block, "d": 3 * block}  # an empty one has a place of its own
    assert end == 5 * block


def test_buffers_past_the_end_of_the_bus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a bus as small as the model, and one that is a block smaller; the refusal comes before the image is made."""
    model = tiny("native")[2]
    config = config_for(model, context=64)
    need = laid_out(compile_model(model, config).sizes, config.ports)[1]
    bits = (need - 1).bit_length()
    monkeypatch.setattr(module, "ADDRESS_BITS", bits)
    compile_model(model, config)
    monkeypatch.setattr(module, "ADDRESS_BITS", bits - 1)
    with pytest.raises(UnsupportedError, match=rf"^the program's buffers take {need} bytes \(program \d+, image .*bus"):
        compile_model(model, config)


def with_last(program: Program, opcode: Opcode, **more: int) -> tuple[Program, int]:
    """Return the program in which fields of the last such instruction are larger by ``more``, and its number."""
    number = max(
        at
        for at, one in enumerate(program.instructions)
        if one.opcode == opcode and (opcode != Opcode.READ or one["base"] == Base.IMAGE)
    )
    one = program.instructions[number]
    fields = {**one.fields, **{name: one[name] + value for name, value in more.items()}}
    instructions = [*program.instructions]
    instructions[number] = Instruction(opcode, fields)
    return replace(program, instructions=tuple(instructions)), number


def test_the_first_instruction_that_leaves_its_buffer_is_found() -> None:
    """Move the last instruction at each buffer's end, or make the buffer smaller by a beat."""
    model = tiny("native")[2]
    program = compile_model(model, config_for(model, context=64))
    assert program.astray() is None
    for opcode, fields in (
        (Opcode.READ, {"start": 1}),
        (Opcode.READ, {"beats": 1}),
        (Opcode.CACHE, {"start": 1}),
        (Opcode.COPY, {"start": 1}),
        (Opcode.ATTEND, {"start": 1}),
        (Opcode.ATTEND, {"kv_heads": 1}),
        (Opcode.COPY, {"heads": 1}),
    ):
        changed, number = with_last(program, opcode, **fields)
        assert changed.astray() == number
    of = {name: [at for at, one in enumerate(program.instructions) if one.opcode == name] for name in Opcode}
    reads = {base: [at for at in of[Opcode.READ] if program.instructions[at]["base"] == base] for base in Base}
    assert replace(program, image=program.image[: -program.config.beat_bytes]).astray() == reads[Base.IMAGE][-1]
    assert replace(program, input_beats=program.input_beats - 1).astray() == reads[Base.INPUT][-1]
    # The last layer's heads are the last of the cache.
    assert replace(program, cache_beats=program.cache_beats - 1).astray() == of[Opcode.ATTEND][-1]


def test_the_last_instruction_of_a_pass_is_checked() -> None:
    """Put a matrix with a fault in the place of the STOP, as a program of a stranger may have it."""
    model = tiny("native")[2]
    program = compile_model(model, config_for(model, context=64))
    assert program.fault() is None
    last = program.commit - 1
    assert program.instructions[last].opcode == Opcode.STOP
    wrong = Instruction(Opcode.MATRIX, {"sink": Sink.RESIDUAL, "fresh": 1, "words": 1, "blocks": 1, "start": 3})
    instructions = (*program.instructions[:last], wrong, *program.instructions[program.commit :])
    fault = replace(program, instructions=instructions).fault()
    assert fault is not None
    assert (fault.number, fault.reason) == (last, "adds from element 3 of the residual on, not from 0")
