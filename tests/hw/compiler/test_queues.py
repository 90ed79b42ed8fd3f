"""Test the entries that programs need in the accelerator's queues, and that too small a queue is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgedec.errors import UnsupportedError
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.compiler.queues import check_queues, queue_needs, queue_sizes
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Destination, Instruction, Opcode, Sink, Source
from tests.edgedec.reference.integer_profile.support.make_models import KINDS, tiny


def compiled(kind: str) -> Program:
    model = tiny(kind)[2]
    return compile_model(model, config_for(model, context=64))


def of_pass(program: Program) -> tuple[Instruction, ...]:
    return program.instructions[: program.commit]


@pytest.mark.parametrize("kind", KINDS)
def test_every_model_fits_its_accelerator(kind: str) -> None:
    program = compiled(kind)
    needs, sizes = queue_needs(of_pass(program), program.config), queue_sizes(program.config)
    assert needs.keys() == sizes.keys()
    assert all(need <= sizes[name] for name, need in needs.items())
    attends = [one for one in program.instructions if one.opcode == Opcode.ATTEND]
    assert needs["factors"] == max(one["heads"] for one in attends)
    assert needs["scales"] == needs["factors"] * program.config.head_dim
    assert needs["coding"] == needs["scales"], "the queries of all heads"
    assert needs["matrices"] == 1
    pieces = [5 * one["words"] - one["spare"] for one in program.instructions if one["rows"]]
    assert needs["rows"] == max(pieces, default=0)


@pytest.mark.parametrize("kind", KINDS)
def test_gains_wait_for_the_matrix_that_makes_their_vector(kind: str) -> None:
    """Gains are read before that matrix, so those of one vector wait at a time.

    Those of a vector that is made of normed rows are read after the matrix, whose own gains have left by then.
    """
    program = compiled(kind)
    normed = [one for one in program.instructions if one.opcode == Opcode.VECTOR and one["normed"]]
    gains = queue_needs(of_pass(program), program.config)["gains"]
    if not normed:
        assert gains == 0
        return
    if rows := {4 + one["elements"] for one in of_pass(program) if one["norm_rows"]}:
        assert gains == max(rows)
        return
    widths = {one["blocks"] * program.config.beat_bytes for one in normed}
    assert max(widths) - program.config.beat_bytes < gains <= max(widths)


def test_vectors_announced_too_far_ahead_are_refused() -> None:
    config = AcceleratorConfig()
    vector = Instruction(Opcode.VECTOR, {"source": int(Source.GATE), "blocks": 1})
    matrix = Instruction(Opcode.MATRIX, {"sink": int(Sink.GATE), "words": 1, "blocks": 1})
    weights = Instruction(Opcode.READ, {"destination": int(Destination.WEIGHTS), "beats": 1})
    four = [vector] * 4 + [matrix, weights] * 4
    assert queue_needs(four, config)["vectors"] == 4
    check_queues(four, config)
    check_queues([*four, *four], config)
    with pytest.raises(
        UnsupportedError, match=r"needs a queue of 5 vectors; this accelerator has one of 4, .*announce"
    ):
        check_queues([vector, *four], config)


def test_items_that_wait_for_later_data_add_up() -> None:
    """Let the gains of two vectors wait for one matrix each; after the first matrix only the second vector's wait."""
    config = replace(AcceleratorConfig(), width=64, hidden=64)
    announced = [
        Instruction(Opcode.VECTOR, {"source": int(Source.GATE), "blocks": 1, "normed": 1}),
        Instruction(Opcode.READ, {"destination": int(Destination.GAINS), "beats": 2, "spare": 4}),
    ]
    made = [
        Instruction(Opcode.MATRIX, {"sink": int(Sink.GATE), "words": 1, "blocks": 1}),
        Instruction(Opcode.READ, {"destination": int(Destination.WEIGHTS), "beats": 1}),
    ]
    assert queue_needs([*announced, *made, *announced, *made], config)["gains"] == 60
    both = [*announced, *announced, *made, *made]
    assert queue_needs(both, config)["gains"] == 120
    with pytest.raises(UnsupportedError, match=r"needs a queue of 120 gains; this accelerator has one of 64, .*hidden"):
        check_queues(both, config)


def test_constants_of_attention_wait_until_the_cache_is_read() -> None:
    """Read factors and scales of two layers: they add up unless CACHE, and nothing else, comes between them."""
    config = AcceleratorConfig()
    attend = Instruction(Opcode.ATTEND, {"heads": 4})
    tables = [
        Instruction(Opcode.READ, {"destination": int(Destination.FACTORS), "beats": 1, "spare": 3}),
        Instruction(Opcode.READ, {"destination": int(Destination.SCALES), "beats": 2, "spare": 5}),
    ]
    cache = Instruction(Opcode.CACHE, {"heads": 4})
    layer = {"factors": 13, "scales": 59}
    for between, times in (([], 2), ([attend], 2), ([cache], 1), ([cache, attend], 1)):
        needs = queue_needs([attend, *tables, *between, *tables, cache], config)
        assert {name: needs[name] for name in layer} == {name: times * one for name, one in layer.items()}


def test_a_program_is_checked_when_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.hw.compiler.queues.VECTORS_AHEAD", 0)
    with pytest.raises(UnsupportedError, match=r"needs a queue of [12] vectors; this accelerator has one of 0"):
        compiled("native")
