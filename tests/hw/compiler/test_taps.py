"""Test the tapped values of a program: their places, their facts in a file, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgedec.errors import BundleError, UnsupportedError, UsageError
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.cycles import cycles
from edgedec.hw.compiler.disassembler import lines
from edgedec.hw.compiler.host import ProgramHost
from edgedec.hw.compiler.lowering import Lowering
from edgedec.hw.compiler.output_places import rows_end, tap_places
from edgedec.hw.compiler.program import Program, compile_model, lowered_sizes
from edgedec.hw.compiler.program_file import load_program, save_program
from edgedec.hw.compiler.taps import TapFacts
from edgedec.hw.isa.instructions import Instruction, Opcode, When
from edgedec.reference.integer_profile.taps import tap_form
from tests.edgedec.reference.integer_profile.support.make_models import tiny

MODEL = tiny("native")[2]
TAPS = ("layers.1.out", "final_norm", "embed", "layers.0.attn", "layers.0.mlp_norm")


def program(taps: tuple[str, ...] = TAPS, *, unit: bool = True) -> Program:
    return compile_model(MODEL, config_for(MODEL, context=64, slots=3, taps=unit), taps=taps)


def changed(whole: Program, at: int, **fields: int) -> Program:
    """Return a program with other fields of one instruction."""
    instructions = [*whole.instructions]
    instructions[at] = Instruction(instructions[at].opcode, {**instructions[at].fields, **fields})
    return replace(whole, instructions=tuple(instructions))


def test_taps_lie_one_after_another_behind_the_logits() -> None:
    whole, plain = program(), program(())
    config = whole.config
    places = [place for one in whole.instructions if (place := tap_places(config, one)) is not None]
    ends = [-(-rows_end(config, whole.host.vocab) // 4096) * 4096, *(place.end for place in places)]
    assert [place.begin for place in places] == ends[:-1]
    assert (len(places), whole.output_bytes) == (4, ends[-1])  # the last layer's output and its norm are one vector
    assert whole.tap_bytes == whole.output_bytes - plain.output_bytes
    assert plain.tap_bytes == 0
    assert whole.astray() is None
    lowering = Lowering(MODEL, config, taps=TAPS)
    lowering.run()
    assert lowered_sizes(lowering) == whole.sizes


def test_a_program_without_taps_is_the_same_on_both_accelerators() -> None:
    """Only fields of VECTOR differ with taps: no unit that is there does anything else."""
    plain, tapped = program((), unit=False), program()
    assert program(()).instructions == plain.instructions
    assert tapped.config.hash != plain.config.hash
    fields = ("tap", "tap_norm", "tap_page")
    for one, other in zip(plain.instructions, tapped.instructions, strict=True):
        assert one.fields == {name: value for name, value in other.fields.items() if name not in fields}
    assert any("tap tap_norm" in line and "tap_page=" in line for line in lines(tapped))


def test_facts_are_those_of_the_model() -> None:
    facts = {tap.name: tap for tap in program().host.taps}
    assert tuple(facts) == TAPS
    for name, tap in facts.items():
        assert tap.form == tap_form(MODEL, name)
        assert tap.selected == (name == "final_norm")
        assert tap.elements == MODEL.graph.values[name].shape[1]
    late = [name for name, tap in facts.items() if program().instructions[tap.instruction]["when"] == When.WITH_LOGITS]
    assert late == ["layers.1.out", "final_norm"]


def test_writes_take_the_time_of_the_memory() -> None:
    plain, tapped = (cycles(program(taps), slots=1, committed=20, bandwidth=1e9).cycles for taps in ((), TAPS))
    assert plain < tapped < 2 * plain


def test_taps_in_a_file_are_read_again(tmp_path: Path) -> None:
    whole = program()
    save_program(whole, tmp_path / "program")
    again = load_program(tmp_path / "program")
    assert again.host == whole.host
    assert again.code == whole.code


def _vector(whole: Program, *, tapped: bool) -> int:
    """Return the number of a VECTOR without a norm that is, or is not, tapped."""
    return next(
        at
        for at, one in enumerate(whole.instructions)
        if one.opcode == Opcode.VECTOR and not one["normed"] and bool(one["tap"]) == tapped
    )


FACTS = program().host.taps


@pytest.mark.parametrize(
    ("tap", "message"),
    [
        (replace(FACTS[0], instruction=1), "no instruction writes the tap 'layers.1.out'"),
        (replace(FACTS[0], instruction=1 << 40), "no instruction writes the tap 'layers.1.out'"),
        (replace(FACTS[2], normed=True), "no instruction writes the tap 'embed'"),
        (replace(FACTS[0], elements=1 << 20), "no instruction writes the tap 'layers.1.out'"),
        (
            replace(FACTS[0], elements=0),
            "the tap 'layers.1.out' has a name, unit, elements or instruction out of range",
        ),
        (replace(FACTS[0], instruction=-1), "unit, elements or instruction out of range"),
        (replace(FACTS[0], unit=-1.0), "unit, elements or instruction out of range"),
        (replace(FACTS[0], unit=1), "a tap is .*, and must have name, instruction, elements, unit, normed, selected"),
        (replace(FACTS[0], name="\x1b[2J"), "unit, elements or instruction out of range"),
        (FACTS[1], "two taps have one name"),
    ],
)
def test_forged_facts_are_refused(tap: TapFacts, message: str, tmp_path: Path) -> None:
    whole = program()
    save_program(replace(whole, host=replace(whole.host, taps=(FACTS[1], tap))), tmp_path / "program")
    with pytest.raises(BundleError, match=f"(?s)program.*{message}"):
        load_program(tmp_path / "program")


def test_forged_places_are_refused(tmp_path: Path) -> None:
    """Write over the logits, over another tap, at the end of the bus, a norm that is none, and without a unit."""
    whole, page = program(), 4096
    at = _vector(whole, tapped=True)
    plain = program((), unit=False)
    for number, (stored, message) in enumerate(
        [
            (
                changed(whole, at, tap_page=whole.instructions[at]["tap_page"] - 1),
                f"instruction {at} leaves its buffer",
            ),
            (changed(whole, at, tap_page=rows_end(whole.config, 0) // page), f"instruction {at} leaves its buffer"),
            (changed(whole, at, tap_page=(1 << 28) - 1), f"instruction {at} leaves its buffer"),
            (changed(whole, at, tap_norm=1), "writes the product of a norm, which its accelerator does not"),
            (changed(plain, _vector(plain, tapped=False), tap=1), "writes a vector, which its accelerator does not"),
        ]
    ):
        save_program(stored, tmp_path / str(number))
        with pytest.raises(BundleError, match=rf"code\.bin: .*{message}"):
            load_program(tmp_path / str(number))


def test_values_that_the_program_cannot_write_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"does not write layers\.0\.out to memory; generate it with taps=True"):
        program(("layers.0.out",), unit=False)
    for name in ("layers.0.q", "logits", "layers.0.attn_norm.codes", "nothing"):
        with pytest.raises(UnsupportedError, match=f"cannot write '{name}': it is no vector that becomes codes"):
            program(("layers.0.out", name))
    (embed,) = (op for op in MODEL.graph.operations if op.kind == "embed")
    host = ProgramHost(program(), MODEL.constants[embed.name].weight)
    with pytest.raises(
        UsageError, match=r"does not write 'layers\.0\.out', only layers\.1\.out, .*compile it with taps"
    ):
        host.tap("layers.0.out")
