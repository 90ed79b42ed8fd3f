"""Test ``edgedec distil`` at the terminal, with torch and without."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from edgedec.host.install_hint import install_extra
from tests.edgedec.cli.conftest import Edgedec

KEYS = {
    "output",
    "parameters",
    "ternary_parameters",
    "tokens",
    "perplexity_teacher",
    "perplexity_student",
    "seconds",
    "loss_plot",
}
# columns of the known model's matrices: 128 and 32
SHORT = (
    "--steps",
    "2",
    "--length",
    "16",
    "--batch-tokens",
    "64",
    "--device",
    "cpu",
    "--precision",
    "float32",
    "-t",
    "1",
)

needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("matplotlib") is None, reason="pip install -e '.[train]'"
)


@pytest.mark.parametrize("package", ["torch", "matplotlib"])
def test_without_the_training_packages_the_command_to_install_them_is_named(
    edgedec: Edgedec, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in ("torch", "matplotlib"):  # neither has to be installed for this test
        monkeypatch.setitem(sys.modules, name, None if name == package else pytest)
    outcome = edgedec("distil", checkpoint, "-o", "out")
    assert (outcome.code, outcome.stdout) == (3, "")
    assert outcome.stderr == f"edgedec: edgedec distil needs {package}; run: {install_extra('train')}\n"
    assert not Path("out.run").exists()


def test_the_help_needs_no_torch(edgedec: Edgedec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    outcome = edgedec("distil", "--help")
    assert outcome.code == 0
    assert "torchrun" in outcome.stdout


@pytest.fixture
def little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    import edgedec.quantize.distil.text as text

    monkeypatch.setattr(text, "_SEQUENCES", 4)


@pytest.mark.thorough
@needs_torch
@pytest.mark.usefixtures("little_text")
def test_json_is_complete(edgedec: Edgedec, checkpoint: Path) -> None:
    outcome = edgedec("distil", checkpoint, "-o", "a b", *SHORT, "--json")
    assert outcome.code == 0, outcome.stderr
    data: dict[str, Any] = outcome.json
    assert set(data) == KEYS
    assert (data["output"], data["tokens"]) == ("a b", 128)
    assert 0 < data["ternary_parameters"] < data["parameters"]
    assert min(data["perplexity_student"], data["perplexity_teacher"]) > 1
    assert Path(data["loss_plot"]).read_bytes().startswith(b"\x89PNG")
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("step 2/2  loss ")
    assert all(part in line for part in ("held-out perplexity", "tokens/s", "0:00 to go"))
    assert edgedec("quantize", "a b", "-o", "bundle", "--method", "ternary").code == 0
    assert edgedec("generate", "-m", "bundle", "-p", "?", "-n", "3", "--temp", "0").code == 0


@pytest.mark.thorough
@needs_torch
@pytest.mark.usefixtures("little_text")
def test_a_second_run_prints_the_same_table(edgedec: Edgedec, checkpoint: Path) -> None:
    Path("text.jsonl").write_text('{"text": "Hi!"}\n' * 60)
    command = ("distil", checkpoint, "-o", "out", "--text", "text.jsonl", *SHORT)
    first, second = edgedec(*command), edgedec(*command)
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    rows = [line.split("  ")[0] for line in first.stdout.splitlines()]
    assert rows == [
        "checkpoint",
        "parameters",
        "tokens trained on",
        "perplexity, teacher",
        "perplexity, student",
        "seconds",
        "loss plot",
    ]
    assert [line for line in second.stdout.splitlines() if not line.startswith("seconds")] == [
        line for line in first.stdout.splitlines() if not line.startswith("seconds")
    ]
    assert second.stderr == "", "no step was made again"


@pytest.mark.thorough
@needs_torch
@pytest.mark.usefixtures("little_text")
def test_a_draft_is_distilled(edgedec: Edgedec, checkpoint: Path) -> None:
    sizes = ("--hidden-size", "32", "--intermediate-size", "16", "--heads", "2", "--layers", "1")
    options = ("--method", "float", "--init", "random", *sizes, *SHORT)
    outcome = edgedec("distil", checkpoint, "-o", "draft", *options, "--json")
    assert outcome.code == 0, outcome.stderr
    assert outcome.json["ternary_parameters"] == 0
    assert edgedec("quantize", "draft", "-o", "bundle", "--method", "int8").code == 0


@pytest.mark.thorough
@needs_torch
@pytest.mark.usefixtures("little_text")
def test_defaults_come_from_the_project(edgedec: Edgedec, checkpoint: Path) -> None:
    Path("one").write_text("o " * 100)
    Path("two").write_text("? " * 100)
    Path("edgedec.toml").write_text(
        '[distil]\ntext = ["one", "two"]\nsteps = 1\nlength = 16\nbatch-tokens = 64\nsub-norms = false\ndevice = "cpu"\n'
    )
    outcome = edgedec("distil", checkpoint, "-o", "out", "--json")
    assert outcome.code == 0, outcome.stderr
    assert outcome.json["tokens"] == 64
    Path("edgedec.toml").write_text("[distil]\nsteps = true\n")
    outcome = edgedec("distil", checkpoint, "-o", "out")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "edgedec.toml: [distil] steps must be a string or a number" in outcome.stderr


@pytest.mark.thorough
@needs_torch
def test_an_interrupted_run_is_resumed(edgedec: Edgedec, checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    command = ["distil", str(checkpoint), "-o", str(output), *SHORT, "--steps", "60", "--every", "1"]
    command += ["--text-tokens", "1000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "edgedec", *command],
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores Ctrl-C, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        # progress lines, which a busy machine prints
        first = next(line for line in lines if not line.startswith("distilling"))
        assert first.startswith("step 1/60 ")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "stopped; the same command continues from the last checkpoint"
    assert not output.exists()
    outcome = edgedec(*command)
    assert outcome.code == 0, outcome.stderr
    steps = [int(line.split("/")[0].removeprefix("step ")) for line in outcome.stderr.splitlines()]
    assert steps == list(range(steps[0], 61))
    assert steps[0] > 1
    assert output.is_dir()
