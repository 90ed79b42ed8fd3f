"""Test where a program's buffers lie, and what does not fit the bus."""

from __future__ import annotations

import pytest

from edgedec.errors import UnsupportedError
from edgedec.hw.compiler import program as module
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.lowering import Lowering
from edgedec.hw.compiler.program import compile_model, laid_out, lowered_sizes
from edgedec.hw.isa.striping import block_bytes
from tests.edgedec.reference.integer_profile.support.make_models import KINDS, tiny


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_before_the_image_are_those_of_the_program(kind: str) -> None:
    model = tiny(kind)[2]
    config = config_for(model, context=64)
    lowering = Lowering(model, config)
    lowering.run()
    assert lowered_sizes(lowering) == compile_model(model, config).sizes


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
