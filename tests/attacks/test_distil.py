"""Refuse what people hand to ``edgedec distil`` by mistake: one message that names it, before anything is trained or
lost.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

import torch
from typer.testing import CliRunner

from edgedec.cli.app import app
from edgedec.quantize.distil import text as text_module
from edgedec.quantize.distil.run_folder import RunFolder
from tests.edgedec.cli.support.make_known_model import byte_tokenizer
from tests.quantize.distil.support.make_teachers import write_teacher

pytestmark = pytest.mark.compare

SHORT = ("--steps", "4", "--length", "16", "--batch-tokens", "64", "--device", "cpu", "-t", "1", "--every", "1")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(text_module, "_SEQUENCES", 4)


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return write_teacher(tmp_path / "teacher")


def distil(*words: object) -> tuple[int, str]:
    """Return (exit code, stderr); an unexpected exception passes through."""
    result = CliRunner().invoke(app, ["distil", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0 or result.stdout == ""
    return result.exit_code, result.stderr


def files() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.mark.thorough(sample=7)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "int4"), "--method must be one of ternary, float, not 'int4'"),
        (("--init", "best"), "--init must be one of absmean, planes, random, not 'best'"),
        (("--group-size", "48"), "--group-size must be 0 (one scale per tensor), 32, 64 or 128, not 48"),
        (("--device", "tpu"), "--device must be one of auto, cpu, cuda, not 'tpu'"),
        (("--precision", "int8"), "--precision must be one of auto, float32, bfloat16, not 'int8'"),
        (("--steps", "0"), "--steps must be at least 1, not 0"),
        (("--length", "0"), "--length must be at least 1, not 0"),
        (("--length", "49"), "--length must be at most the model's context of 48, not 49"),
        (("--length", "1000000000000"), "--length must be at most the model's context of 48"),
        (("--batch-tokens", "8"), "--batch-tokens 8 are 0 rows of 16"),
        (("--accumulate", "3"), "--batch-tokens 64 are 4 rows of 16, which cannot be divided into 3 equal parts"),
        (("--temp", "0"), "--temp must be above 0 and below 100, not 0.0"),
        (("--text-tokens", "-1"), "--text-tokens must be 0 or more, not -1"),
        (("--learning-rate", "nan"), "--learning-rate must be positive, not nan"),
        (("--text-weight", "0", "--logits-weight", "0"), "must not both be 0"),
        (("--hidden-size", "16"), "add --init random, or leave out --hidden-size"),
        (("--hidden-size", "-16"), "--hidden-size must be 1 or more, or 0 for the teacher's, not -16"),
        (("--heads", "3", "--init", "random"), "--heads must be a multiple of 2"),
        (("--layers", "99"), "--layers must be at most 8, 4 times the teacher's 2, not 99"),
        (("--method", "float", "--sub-norms"), "are for ternary students, not --method float"),
        (("--text", "nowhere"), "--text nowhere: there is no such file"),
        (("--text", "teacher/config.json", "--text-tokens", "5"), "--text-tokens is for text that the teacher writes"),
    ],
)
def test_invalid_options_are_refused(teacher: Path, options: tuple[str, ...], message: str) -> None:
    code, stderr = distil(teacher, "-o", "out", *SHORT, *options)
    assert code == 2
    assert stderr.startswith("edgedec: ")
    assert message in stderr
    assert stderr.count("\n") == 1
    assert not Path("out.run").exists()


def test_groups_that_do_not_fit_are_refused(teacher: Path) -> None:
    code, stderr = distil(teacher, "-o", "out", *SHORT, "--group-size", "128")
    assert code == 1
    assert "has 32 columns, which groups of 128 do not divide; choose another --group-size, or 0" in stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty", b"", "the file is empty"),
        ("short", b"a few words", "the text has 13 tokens; training and validation need 18 each"),
        ("latin", b"caf\xe9", "not UTF-8 at byte 3"),
        ("lines.jsonl", b'{"text": "a"}\n{"text": \n', "line 2 must be a JSON object"),
    ],
)
def test_unusable_text_is_refused(teacher: Path, name: str, content: bytes, message: str) -> None:
    Path(name).write_bytes(content)
    code, stderr = distil(teacher, "-o", "out", *SHORT, "--text", name)
    assert code == 2
    assert message in stderr
    assert not Path("out.run").exists()


def test_an_unsuitable_teacher_is_refused(teacher: Path) -> None:
    config = json.loads((teacher / "config.json").read_text())
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: (teacher / "model.safetensors").write_bytes(b"\0" * 40), "model.safetensors"),
        (lambda: (teacher / "model.safetensors").unlink(), "has neither model.safetensors nor"),
        (lambda: (teacher / "config.json").write_text(json.dumps(config | {"model_type": "mamba"})), "'mamba' is not"),
        (lambda: (teacher / "config.json").write_text(json.dumps(config | {"hidden_size": 48})), "(264, 48)"),
        (lambda: (teacher / "config.json").unlink(), "has no config.json"),
    ]
    assert distil("nowhere", "-o", "out", *SHORT)[0] != 0
    for damage, message in cases:
        keep = {path: path.read_bytes() for path in teacher.iterdir()}
        damage()
        code, stderr = distil(teacher, "-o", "out", *SHORT)
        assert code in (1, 2)
        assert stderr.startswith("edgedec: ")
        assert message in stderr
        assert not Path("out.run").exists()
        for path, content in keep.items():
            path.write_bytes(content)


def test_a_tokenizer_of_another_model_is_refused(teacher: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([f"more {number}" for number in range(10)])
    tokenizer.save("tokenizer.json")
    code, stderr = distil(teacher, "-o", "out", *SHORT, "--tokenizer", "tokenizer.json")
    assert code == 1
    assert "tokenizer.json: has token id 267" in stderr
    assert "the model's vocabulary ends at 263" in stderr


@pytest.mark.parametrize("method", ["ternary", "float"])
@pytest.mark.parametrize("kind", ["a file", "a folder", "a model", "the teacher"])
def test_an_output_of_another_program_is_refused(teacher: Path, kind: str, method: str) -> None:
    """Check this because a float student once would have replaced any Hugging Face folder, its teacher's too."""
    match kind:
        case "a file":
            Path("out").write_text("dear diary")
        case "a folder":
            Path("out").mkdir()
            Path("out/diary").write_text("dear")
        case "a model":
            write_teacher(Path("out"), seed=1)
    before = files()
    code, stderr = distil(teacher, "-o", "teacher" if kind == "the teacher" else "out", *SHORT, "--method", method)
    assert code == 2
    assert "cannot write " in stderr
    assert "choose another -o" in stderr
    assert files() == before


def test_the_working_folder_is_refused_as_output(teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(teacher)
    code, stderr = distil(".", "-o", ".", *SHORT)
    assert code == 2
    assert "it is the teacher; choose another -o" in stderr


def test_a_run_folder_of_another_program_is_refused(teacher: Path) -> None:
    Path("out.run").mkdir()
    Path("out.run/checkpoint.pt").write_text("mine")
    for options in ((), ("--restart",)):
        code, stderr = distil(teacher, "-o", "out", *SHORT, *options)
        assert code == 2
        assert "out.run: it holds other files and no run.json; choose another -o" in stderr
        assert Path("out.run/checkpoint.pt").read_text() == "mine"


@pytest.mark.thorough
@pytest.mark.parametrize("file", ["run.json", "checkpoint.pt"])
def test_a_damaged_run_names_the_way_out(teacher: Path, file: str) -> None:
    assert distil(teacher, "-o", "out", *SHORT)[0] == 0
    path = Path("out.run") / file
    path.write_bytes(path.read_bytes()[:-20])
    code, stderr = distil(teacher, "-o", "out", *SHORT)
    assert code == 1
    assert f"out.run/{file} is damaged; add --restart to train from the beginning" in stderr
    assert Path("out/model.safetensors").exists()
    assert distil(teacher, "-o", "out", *SHORT, "--restart")[0] == 0


@pytest.mark.thorough
def test_a_learning_rate_that_diverges_is_reported(teacher: Path) -> None:
    """Check that the last good checkpoint stays, and that the message says where the model diverged."""
    code, stderr = distil(
        teacher, "-o", "out", *SHORT, "--method", "float", "--learning-rate", "1e38", "--warmup-steps", "0"
    )
    assert code == 1
    *_, message = stderr.splitlines()
    assert "training stopped at step" in message
    assert "is the first value that is not finite" in message or "is not finite" in message
    assert "Try a smaller --learning-rate (now 1e+38)" in message
    assert not Path("out").exists()
    folder = RunFolder(path=Path("out.run"))
    if folder.checkpoint.exists():
        assert all(torch.isfinite(tensor).all() for tensor in folder.load()["model"].values())


@pytest.mark.thorough
def test_a_full_disk_is_an_error(teacher: Path) -> None:
    """Limit the size of files, which the first checkpoint exceeds; without it the run succeeds."""
    options = ["--text-tokens", "100", "--precision", "float32", "--layers", "8"]
    command = [sys.executable, "-m", "edgedec", "distil", str(teacher), "-o", "out", *SHORT, *options]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY)),
    )
    assert run.returncode == 1, run.stderr
    assert "edgedec: cannot write" in run.stderr
    assert (
        "out.run/checkpoint.pt: File too large (there was no previous checkpoint, so the same command begins"
        in run.stderr
    )
    assert not any("partial" in path.name for path in Path("out.run").iterdir())
    assert distil(teacher, "-o", "out", *SHORT, *options)[0] == 0


@pytest.mark.thorough
def test_ctrl_c_during_sampling_ends_the_run(teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample: Callable[..., object] = text_module._sample
    calls: list[int] = []

    def interrupted(*rest: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return sample(*rest)

    monkeypatch.setattr(text_module, "_sample", interrupted)
    code, stderr = distil(teacher, "-o", "out", *SHORT)
    assert (code, stderr) == (130, "stopped; the same command continues from the last checkpoint\n")
    assert len(list(Path("out.run").glob("text-*/*.npy"))) == 2
    assert distil(teacher, "-o", "out", *SHORT)[0] == 0
    assert len(calls) == 1 + len(list(Path("out.run").glob("text-*/*.npy")))
