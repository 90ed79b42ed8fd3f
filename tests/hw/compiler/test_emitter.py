from __future__ import annotations

import numpy as np
import pytest

from edgedec.hw.compiler.emitter import ProgramEmitter
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Base, Destination, Opcode, pack, unpack

MOST = (1 << 24) - 1  # what the field holds


@pytest.mark.parametrize("beats", [1, MOST - 1, MOST, MOST + 1, 2 * MOST, 2 * MOST + 1])
def test_a_read_longer_than_its_field_is_cut(beats: int) -> None:
    emitter = ProgramEmitter(AcceleratorConfig())
    emitter.weights("before", 7, lambda: np.zeros(7 * 64, np.uint8))
    emitter.weights("long", beats, lambda: pytest.fail("made before the image is"))
    _, *reads = emitter.instructions
    assert emitter.names == ["before"] + ["long"] * len(reads)
    assert [one["start"] for one in reads] == [7 + MOST * i for i in range(len(reads))]
    assert [one["beats"] for one in reads[:-1]] == [MOST] * (len(reads) - 1)
    assert sum(one["beats"] for one in reads) == beats
    assert len(reads) == -(-beats // MOST)
    for one in reads:
        assert unpack(pack(one)) == one
        assert (one.opcode, one["base"], one["destination"]) == (Opcode.READ, Base.IMAGE, Destination.WEIGHTS)
    assert emitter.image.beats == 7 + beats
