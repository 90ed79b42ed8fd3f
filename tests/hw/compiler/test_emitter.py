from __future__ import annotations

import numpy as np
import pytest

from edgedec.hw.compiler.emitter import ProgramEmitter
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Base, Destination, Opcode, pack, unpack

MOST = (1 << 24) - 1  # largest value of the field


@pytest.mark.parametrize("beats", [1, MOST - 1, MOST, MOST + 1, 2 * MOST, 2 * MOST + 1])
def test_a_read_longer_than_its_field_is_split(beats: int) -> None:
    emitter = ProgramEmitter(AcceleratorConfig(), region_bytes=1 << 40)
    emitter.weights("before", 7, lambda: np.zeros(7 * 64, np.uint8))
    emitter.weights("long", beats, lambda: pytest.fail("made before the image is"))
    _, *read_instructions = emitter.instructions
    assert emitter.names == ["before"] + ["long"] * len(read_instructions)
    assert [entry["start"] for entry in read_instructions] == [7 + MOST * i for i in range(len(read_instructions))]
    assert [entry["beats"] for entry in read_instructions[:-1]] == [MOST] * (len(read_instructions) - 1)
    assert sum(entry["beats"] for entry in read_instructions) == beats
    assert len(read_instructions) == -(-beats // MOST)
    for entry in read_instructions:
        assert unpack(pack(entry)) == entry
        assert not entry["spare"], "weights are whole beats"
        assert (entry.opcode, entry["base"], entry["destination"]) == (Opcode.READ, Base.IMAGE, Destination.WEIGHTS)
    assert emitter.image.beats == 7 + beats


def test_a_read_longer_than_a_region_is_split_and_one_of_the_input_is_not() -> None:
    emitter = ProgramEmitter(AcceleratorConfig(beat_bytes=16), region_bytes=160)
    emitter.weights("long", 25, lambda: pytest.fail("made before the image is"))
    emitter.input(Destination.LOAD, "rows", 400)
    assert [(entry["base"], entry["beats"]) for entry in emitter.instructions[:3]] == [
        (Base.IMAGE, n) for n in (10, 10, 5)
    ]
    assert len(emitter.instructions) == 4


def test_rows_of_the_input_buffer_follow_each_other() -> None:
    emitter = ProgramEmitter(AcceleratorConfig())
    emitter.input(Destination.ANGLES, "first", 1)
    beats = emitter.input_beats
    emitter.input(Destination.ANGLES, "second", 1)
    assert beats > 0
    assert [(entry["base"], entry["start"]) for entry in emitter.instructions] == [
        (Base.INPUT, 0),
        (Base.INPUT, beats),
    ]
    assert emitter.input_beats == 2 * beats
