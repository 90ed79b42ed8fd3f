"""Compare the results of programs with a rough head with those of the integer profile, integer for integer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.errors import BundleError, UnsupportedError, UsageError
from edgedec.graph.ops import Embed
from edgedec.hw.compiler.choose import CANDIDATES, config_for, small_config
from edgedec.hw.compiler.host import ProgramHost
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.compiler.program_file import load_program, save_program
from edgedec.hw.compiler.rough_head import RoughFacts
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Opcode, Sink
from edgedec.reference.integer_profile.head import top
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.reference.integer_profile.rough_head import head_of
from edgedec.schemes import Int8Weight
from edgedec.sim.interpreter import Interpreter
from tests.edgedec.reference.integer_profile.support.make_models import VOCAB, rough_tiny, tiny

WIDTHS = [
    {"beat_bytes": 8, "slots": 5, "tile_rows": 25, "ports": 1},
    {"beat_bytes": 16, "slots": 3, "tile_rows": 15, "ports": 2},
    {"beat_bytes": 64, "slots": 8},
]


def compiled(kind: str, candidates: int, planes: int = 2, **members: Any) -> tuple[IntegerModel, Program, ProgramHost]:
    model = rough_tiny(kind, candidates, planes)
    program = compile_model(model, config_for(model, **{"context": 64, "top_k": candidates, **members}))
    return model, program, host_of(kind, model, program)


def host_of(kind: str, model: IntegerModel, program: Program, **changes: Any) -> ProgramHost:
    (embed,) = (op for op in model.graph.operations if isinstance(op, Embed))
    weight: Any = tiny(kind)[1][head_of(model.graph).weights[0]]
    return ProgramHost(program, model.constants[embed.name].weight, changes.get("head", weight))


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("widths", WIDTHS, ids=lambda widths: f"W{widths['beat_bytes']}")
@pytest.mark.parametrize("kind", ["native", "int8", "gemma2"])
@pytest.mark.parametrize(("candidates", "planes"), [(1, 2), (6, 1), (6, 2), (VOCAB + 2, 2)])
def test_results_equal_the_profile(kind: str, widths: dict[str, Any], candidates: int, planes: int) -> None:
    """Run passes of all slots, a tree, and single rows, with whole rows and without."""
    model, program, host = compiled(kind, candidates, planes, **widths)
    machine, sequence, slots = Interpreter(program), model.open(), program.config.slots
    rng = np.random.default_rng(8)
    for n, logits in ((slots, 2), (1, 1), (slots - 1, 1), (2, 2)):
        ids = rng.integers(0, VOCAB, n).astype(np.int32)
        positions = np.full(n, sequence.length + 1, np.int32)
        positions[0] -= 1
        visible = np.eye(n, dtype=np.bool_)
        visible[:, 0] = True
        machine.input[:] = host.input(ids, positions)
        masks = (visible @ (1 << np.arange(n))).tolist()
        machine.run_pass(n, sequence.length, masks, positions.tolist(), logits)
        expected = sequence.forward(ids, positions=positions, visible=visible)
        rows = np.arange(n, dtype=np.int32)[:: -1 if n > 2 else 1]
        found = host.results(machine.output, rows)
        best = top(expected, candidates)[rows]
        assert np.array_equal(found.ids, best)
        assert np.array_equal(found.logits, np.take_along_axis(expected.values[rows], best.astype(np.int64), 1))
        assert np.array_equal(found.mantissa, expected.mantissa[rows])
        assert np.array_equal(found.exponent, expected.exponent[rows])
        assert found.cap == expected.cap
        assert found.sums.all() == (kind != "gemma2")
        if logits == 2:
            whole = host.logits(machine.output, rows)
            assert np.array_equal(whole.values, expected.values[rows])
            assert np.array_equal(whole.exponent, expected.exponent[rows])
        sequence.commit(np.array([0], np.int32))
        machine.commit(sequence.length - 1, 1)


@pytest.mark.parametrize("planes", [1, 2])
def test_the_head_is_its_planes_and_nothing_else_differs(planes: int) -> None:
    _, program, host = compiled("native", 6, planes, slots=3)
    heads = [one for one in program.instructions if one.opcode == Opcode.MATRIX and one["sink"] == Sink.LOGITS]
    assert {(one["tied"], one["planes"], one["int8"], one["rows"], one["group_blocks"]) for one in heads} == {
        (planes - 1, planes, 0, 1, 0)
    }
    others = [one for one in program.instructions if one.opcode == Opcode.MATRIX and one["sink"] != Sink.LOGITS]
    assert not any(one["tied"] for one in others)
    assert [tap.name for tap in program.host.taps] == ["final_norm"]
    assert len(host.beside) >= 4096
    assert host.beside.stop == program.output_bytes
    plain = compile_model(tiny("native")[2], config_for(tiny("native")[2], context=64, slots=3))
    assert plain.host.rough is None
    assert plain.config.hash != program.config.hash
    assert replace(program.config, rough_head=0, taps=False, top_k=8).hash == plain.config.hash


def test_an_accelerator_for_a_rough_head_has_its_members() -> None:
    model = rough_tiny("native", 6)
    for config in (small_config(model), config_for(model)):
        assert (config.rough_head, config.taps, config.per_row, config.top_k) == (2, True, True, CANDIDATES[2])
    assert small_config(model, top_k=9).top_k == 9
    plain = small_config(tiny("native")[2])
    assert (plain.rough_head, plain.taps, plain.top_k) == (0, False, 4)
    with pytest.raises(
        UnsupportedError, match="the head logits is a rough one of 2 planes; generate the accelerator with rough_head=2"
    ):
        compile_model(model, plain)
    for members in ({"taps": False}, {"taps": True, "per_row": False}):
        with pytest.raises(UsageError, match="rough_head needs taps=True and per_row=True"):
            AcceleratorConfig(rough_head=1, **members)


def test_facts_survive_a_file(tmp_path: Path) -> None:
    _, program, _ = compiled("native", 6, slots=3)
    assert isinstance(program.host.rough, RoughFacts)
    save_program(program, tmp_path / "program")
    assert load_program(tmp_path / "program").host == program.host


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre_shift": 8}, "the rough head has pre_shift=8, which is 0 to 7"),
        ({"code_unit": -1.0}, "has a name, unit or exponent out of range"),
        ({"exponent": 1 << 20}, "has a name, unit or exponent out of range"),
        ({"norm": "embed"}, "the rough head reads 'embed', which is no tapped norm"),
        ({"head": 3}, "and must have head, norm, code_unit, exponent, pre_shift"),
    ],
)
def test_wrong_facts_in_a_file_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    _, program, _ = compiled("native", 6, slots=3)
    assert program.host.rough is not None
    host = replace(program.host, rough=replace(program.host.rough, **changes))
    save_program(replace(program, host=host), tmp_path / "program")
    with pytest.raises(BundleError, match=message):
        load_program(tmp_path / "program")


def test_a_host_without_the_int8_rows_is_refused() -> None:
    model, program, _ = compiled("native", 6, slots=3)
    other = Int8Weight(codes=np.zeros((2, 3), np.int8), scale=np.ones(2, np.float32))
    for head, found in ((None, "missing"), (other, "2x3")):
        with pytest.raises(
            UsageError, match=rf"head model.embed_tokens.weight is {found}, and its int8 rows, {VOCAB}x\d+, score"
        ):
            host_of("native", model, program, head=head)
