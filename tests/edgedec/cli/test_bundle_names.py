"""Test that every command takes the name of an embedded model for a bundle, and that ``-o`` may name an empty folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer

from edgedec.cli import app as app_module
from edgedec.errors import UsageError
from tests.edgedec.cli.conftest import Edgedec

COMMANDS = typer.main.get_command(app_module.app).commands  # type: ignore[attr-defined]
CALLS = {  # command -> calls of it with the bundle NAME
    "export": ["export NAME -o out", "export BUNDLE --format onnx -md NAME -o out"],
    "inspect": ["inspect NAME"],
    "borrow": ["borrow NAME --target BUNDLE -o out", "borrow BUNDLE --target NAME -o out"],
    "calibrate-kv": ["calibrate-kv -m NAME -o out"],
    "plan": ["plan -m NAME", "plan -m BUNDLE --spec-type model -md NAME"],
    "generate": ["generate -m NAME -p hi", "generate -m BUNDLE -p hi --spec-type model -md NAME"],
    "serve": ["serve -m NAME --port 0"],
    "batch": ["batch requests -m NAME -o out"],
    "chat": ["chat -m NAME", "chat -m BUNDLE --spec-type model -md NAME"],
    "bench": ["bench -m NAME"],
    "eval": ["eval -m NAME --text text", "eval -m BUNDLE -m NAME --text text"],
    "simulate": ["simulate -m NAME", "simulate -m NAME --terminal"],
    "build-bitstream": ["build-bitstream -m NAME --board ulx3s-85f -o out"],
    "deploy": ["deploy NAME --host board"],
}


def test_every_command_that_takes_a_bundle_is_called() -> None:
    taking = {
        name
        for name, command in COMMANDS.items()
        for param in command.params
        if param.metavar in ("BUNDLE", "BOARD_BUNDLE") and "--output" not in param.opts
    }
    assert taking == set(CALLS)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("name", ["demo", "demo-int8", "demo-draft", "demo-hybrid"])
@pytest.mark.parametrize("words", [words for several in CALLS.values() for words in several])
def test_an_embedded_model_is_a_bundle(
    edgedec: Edgedec, bundle: Path, monkeypatch: pytest.MonkeyPatch, words: str, name: str
) -> None:
    if words.split()[0] in ("simulate", "build-bitstream"):
        pytest.importorskip("amaranth")

    def embedded(requested: str, **options: object) -> Path:
        raise UsageError(f"{requested} was asked for")

    monkeypatch.setattr("edgedec.demo.bundle_path", embedded)
    Path("text").write_text("some text")
    Path("requests").write_text('{"prompt": "hi"}')
    values = {"NAME": name, "BUNDLE": str(bundle)}
    outcome = edgedec(*(values.get(word, word) for word in words.split()))
    assert (outcome.code, outcome.stderr.splitlines()[-1]) == (2, f"edgedec: {name} was asked for")
    Path(name).mkdir()
    outcome = edgedec(*({**values, "NAME": f"./{name}"}.get(word, word) for word in words.split()))
    assert "was asked for" not in outcome.stderr
    assert name in outcome.stderr


def test_deploy_of_a_bundle_says_what_makes_a_board_bundle(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("deploy", bundle, "--host", "board")
    assert outcome.code == 1
    assert (
        f"{bundle}: is a model's bundle, not a board bundle; build one for a board with: edgedec build"
        in outcome.stderr
    )


FOLDERS = {
    "quantize": "quantize CHECKPOINT --method float --eval-text none -o OUT",
    "onnx": "export BUNDLE --format onnx -o OUT",
    "safetensors": "export BUNDLE --format safetensors -o OUT",
}


@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize("place", ["empty", "link to an empty folder", "link to nothing yet"])
@pytest.mark.parametrize("words", FOLDERS.values(), ids=FOLDERS)
def test_an_empty_folder_is_filled(edgedec: Edgedec, bundle: Path, checkpoint: Path, words: str, place: str) -> None:
    target = Path("out" if place == "empty" else "target")
    if place != "link to nothing yet":
        target.mkdir()
    if place != "empty":
        Path("out").symlink_to("target")
    values = {"OUT": "out", "BUNDLE": str(bundle), "CHECKPOINT": str(checkpoint)}
    for _ in range(2):  # the second run replaces the output of the first
        outcome = edgedec(*(values.get(word, word) for word in words.split()))
        assert outcome.code == 0, outcome.stderr
        assert Path("out").is_symlink() == (place != "empty")
        assert sum(1 for _ in target.iterdir()) > 1
        assert sorted(os.listdir()) == sorted({"out", str(target)})


@pytest.mark.parametrize("words", FOLDERS.values(), ids=FOLDERS)
def test_a_folder_with_something_else_is_left_alone(
    edgedec: Edgedec, bundle: Path, checkpoint: Path, words: str
) -> None:
    Path("home").mkdir()
    Path("home/thesis.txt").write_text("precious")
    Path("out").symlink_to("home")
    for out in ("home", "out"):
        values = {"OUT": out, "BUNDLE": str(bundle), "CHECKPOINT": str(checkpoint)}
        outcome = edgedec(*(values.get(word, word) for word in words.split()))
        assert (outcome.code, outcome.stdout) == (2, "")
        assert f"edgedec: cannot write {Path(out).absolute()}" in outcome.stderr
        assert os.listdir("home") == ["thesis.txt"]
    assert sorted(os.listdir()) == ["home", "out"]
