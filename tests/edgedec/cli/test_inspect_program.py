"""Test ``edgedec inspect --program``: its JSON is a contract, its text is for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.compiler.program_file import save_program
from tests.edgedec.cli.conftest import Edgedec
from tests.edgedec.reference.integer_profile.support.make_models import tiny
from tests.sim.support.bench_interpreter import compiled


@pytest.fixture(scope="module")
def program() -> Program:
    return compiled(tiny("native")[2])


@pytest.fixture(scope="module")
def folder(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("with spaces") / "a program"
    save_program(program, path)
    return path


def test_json_is_complete(edgedec: Edgedec, program: Program, folder: Path) -> None:
    data: dict[str, Any] = edgedec("inspect", "--program", folder, "--json", "--instructions", 0).json
    assert (data["sha256"], data["commit"]) == (program.sha256, program.commit)
    assert data["instructions"] == len(data["listing"]) == len(program.instructions)
    assert data["config"]["head_dim"] == 10
    entries = [entry for entry in data["listing"] if entry["opcode"] == "READ"]
    assert sum(entry["bytes"] for entry in entries) == sum(data["read_bytes"].values())
    assert sum(entry["bytes"] for entry in entries if entry["fields"]["base"] == "IMAGE") == data["image_bytes"]
    partial: dict[str, Any] = edgedec("inspect", "--program", folder, "--json").json
    assert partial["listing"] == data["listing"][:40]


def test_text_has_the_main_figures(edgedec: Edgedec, folder: Path) -> None:
    lines = edgedec("inspect", "--program", folder, "--instructions", 7).stdout.splitlines()
    assert any(line.startswith("instructions") and "commit" in line for line in lines)
    assert any(line.startswith("WEIGHTS") for line in lines)
    assert lines[-1].startswith("... and ")
    listing = [line for line in lines if "  ; " in line]
    assert [int(line.split()[0]) for line in listing] == list(range(7))
    assert listing[5].split()[1:3] == ["MATRIX", "QUERIES"]
    assert listing[5].endswith("; layers.0.q_proj -> layers.0.q")


def test_taps_are_shown(edgedec: Edgedec, tmp_path: Path) -> None:
    model, names = tiny("native")[2], ("layers.0.out", "final_norm")
    save_program(compile_model(model, config_for(model, context=64, taps=True), taps=names), tmp_path / "p")
    lines = edgedec("inspect", "--program", tmp_path / "p").stdout.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("taps")] == ["layers.0.out, final_norm"]
    data: dict[str, Any] = edgedec("inspect", "--program", tmp_path / "p", "--json").json
    assert [tap["name"] for tap in data["host"]["taps"]] == list(names)


@pytest.mark.parametrize("arguments", [(), ("demo", "--program", "x"), ("--program", "x", "--render-chat")])
def test_a_bundle_and_a_program_are_mutually_exclusive(edgedec: Edgedec, arguments: tuple[str, ...]) -> None:
    outcome = edgedec("inspect", *arguments)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "--program" in outcome.stderr


def test_a_folder_without_a_program_is_refused(edgedec: Edgedec, tmp_path: Path) -> None:
    outcome = edgedec("inspect", "--program", tmp_path)
    assert outcome.code == 2
    assert "no compiled program" in outcome.stderr


def test_a_changed_file_is_named(edgedec: Edgedec, program: Program, tmp_path: Path) -> None:
    save_program(program, tmp_path / "it")
    file = tmp_path / "it" / "image.bin"
    file.write_bytes(bytes(255 - byte if i == 7 else byte for i, byte in enumerate(file.read_bytes())))
    outcome = edgedec("inspect", "--program", tmp_path / "it")
    assert outcome.code == 1
    assert "image.bin" in outcome.stderr
