"""Test the ends of the ranges that a stored program may have; tests/attacks damages one in every way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedec.errors import BundleError
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.compiler.program_file import MANIFEST, load_program, save_program
from tests.edgedec.reference.integer_profile.support.make_models import tiny


def program() -> Program:
    model = tiny("native")[2]
    return compile_model(model, config_for(model, context=64))


def loaded(stored: Program, folder: Path) -> Program:
    save_program(stored, folder)
    return load_program(folder)


def same(a: Program, b: Program) -> bool:
    return replace(a, image=b.image) == b and np.array_equal(a.image, b.image)


def test_the_largest_and_smallest_numbers_are_read_again(tmp_path: Path) -> None:
    whole = program()
    most = (1 << 36) - 1  # beats
    for number, stored in enumerate(
        [
            replace(whole, cache_beats=most, input_beats=most),
            replace(whole, host=replace(whole.host, hidden=1, vocab=1, residual_fraction=1 << 10)),
            replace(whole, host=replace(whole.host, residual_fraction=-1 << 10)),
        ]
    ):
        assert same(loaded(stored, tmp_path / str(number)), stored)


@pytest.mark.parametrize("kind", ["gemma2", "gemma3"])
def test_facts_that_few_programs_have_are_read_again(kind: str, tmp_path: Path) -> None:
    """A program that has none of them does not say so, so that earlier versions of edgedec read it."""
    model = tiny(kind)[2]
    stored = compile_model(model, config_for(model, context=64))
    facts = stored.host
    assert (facts.logits_cap, len(facts.second_frequencies)) == ((5.0, 0) if kind == "gemma2" else (None, 5))
    again = loaded(stored, tmp_path / "program")
    assert same(again, stored)
    assert again.host == facts
    save_program(program(), tmp_path / "plain")
    said = json.loads((tmp_path / "plain" / MANIFEST).read_text("utf-8"))["host"]
    assert not {"logits_cap", "second_frequencies", "second_magnitude"} & set(said)


def test_numbers_out_of_range_are_refused(tmp_path: Path) -> None:
    whole = program()
    past = 1 << 36
    for number, (stored, name) in enumerate(
        [
            (replace(whole, cache_beats=past), f"cache_beats is {past}"),
            (replace(whole, input_beats=past), f"input_beats is {past}"),
            (replace(whole, cache_beats=0), "cache_beats is 0"),
            (replace(whole, host=replace(whole.host, hidden=0)), "residual_fraction is out of range"),
            (replace(whole, host=replace(whole.host, vocab=0)), "residual_fraction is out of range"),
            (replace(whole, host=replace(whole.host, residual_fraction=1025)), "residual_fraction is out of range"),
            (replace(whole, host=replace(whole.host, logits_cap=-0.5)), "logits_cap must be positive"),
        ]
    ):
        with pytest.raises(BundleError, match=f"{name}; compile the program again"):
            loaded(stored, tmp_path / str(number))
