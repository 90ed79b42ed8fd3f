"""Test ``edgedec quantize``, which turns a checkpoint into a bundle and prints a table."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from edgedec.bundle import Bundle
from tests.edgedec.cli.conftest import Edgedec
from tests.edgedec.cli.support.make_known_model import ENDLESS, byte_tokenizer
from tests.quantize.readers.support import make_qwen35_gguf

KEYS = {
    "output",
    "method",
    "planes",
    "tied",
    "group_size",
    "parameters",
    "bits_per_weight",
    "bytes",
    "perplexity_before",
    "perplexity_after",
    "eval_tokens",
    "calibration_tokens",
    "seconds",
    "peak_bytes",
}


@pytest.fixture(autouse=True)
def _little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.cli.quantize.EVAL_TOKENS", 512)
    monkeypatch.setattr("edgedec.api.WINDOW_TOKENS", 64)


@pytest.mark.thorough
def test_int8_makes_a_bundle(edgedec: Edgedec, checkpoint: Path) -> None:
    outcome = edgedec("quantize", checkpoint, "-o", "a b.edgedec", "--method", "int8", "--json")
    assert outcome.code == 0, outcome.stderr
    data: dict[str, Any] = outcome.json
    assert set(data) == KEYS
    assert (data["output"], data["method"], data["planes"]) == ("a b.edgedec", "int8", 0)
    assert 8 < data["bits_per_weight"] < 9
    assert data["eval_tokens"] == 512 - 512 // 64, "all but the first of each window"
    assert data["calibration_tokens"] == 0
    assert data["perplexity_after"] == pytest.approx(data["perplexity_before"], rel=0.02)
    assert data["bytes"] == sum(tensor.nbytes for tensor in Bundle.open("a b.edgedec").tensors.values())
    assert edgedec("generate", "-m", "a b.edgedec", "-p", "?", "--temp", "0").stdout == "Hi!\n"


def test_float_keeps_every_value(edgedec: Edgedec, checkpoint: Path) -> None:
    Path("text").write_text(f"o{ENDLESS}" * 30)
    options = ("--method", "float", "--eval-text", "text", "--json")
    data: dict[str, Any] = edgedec("quantize", checkpoint, "-o", "out", *options).json
    assert data["perplexity_after"] == pytest.approx(data["perplexity_before"], rel=1e-5)
    assert data["bits_per_weight"] == 32


@pytest.mark.parametrize(("name", "message"), [("missing", "there is no such file"), ("empty", "the file is empty")])
def test_the_evaluation_text_is_read_before_anything_is_written(
    edgedec: Edgedec, checkpoint: Path, name: str, message: str
) -> None:
    Path("empty").write_bytes(b"")
    outcome = edgedec("quantize", checkpoint, "-o", "out", "--eval-text", name)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert f"--eval-text {name}: {message}" in outcome.stderr
    assert not Path("out").exists()


def test_the_result_is_printed_as_a_table(edgedec: Edgedec, checkpoint: Path) -> None:
    outcome = edgedec("quantize", checkpoint, "-o", "out")
    rows = {line.split("  ")[0] for line in outcome.stdout.splitlines()}
    assert {"bits per weight", "size", "perplexity before", "perplexity after", "seconds", "peak memory"} <= rows


@pytest.mark.thorough
@pytest.mark.parametrize("calibration", [None, "none", "text"])
def test_planes_take_every_kind_of_calibration(edgedec: Edgedec, checkpoint: Path, calibration: str | None) -> None:
    Path("text").write_text(f"o{ENDLESS}" * 60)
    options = ["--method", "ternary", "--planes", "3", "--group-size", "32", "--calibration-tokens", "256", "--json"]
    options += ["--calibration", calibration] if calibration else []
    outcome = edgedec("quantize", checkpoint, "-o", "out", *options)
    assert outcome.code == 0, outcome.stderr
    data: dict[str, Any] = outcome.json
    assert (data["planes"], data["group_size"], data["tied"]) == (3, 32, True)
    assert data["calibration_tokens"] == (0 if calibration == "none" else 256)
    assert data["perplexity_after"] == pytest.approx(data["perplexity_before"], rel=0.02)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "kind", "group_size"),
    [(("--method", "int4"), "int4", 32), (("--method", "ternary", "--planes", "2", "--tied"), "ternary", 64)],
)
def test_int4_and_tied_planes_are_calibrated(
    edgedec: Edgedec, checkpoint: Path, options: tuple[str, ...], kind: str, group_size: int
) -> None:
    outcome = edgedec("quantize", checkpoint, "-o", "out", *options, "--calibration-tokens", "256", "--json")
    assert outcome.code == 0, outcome.stderr
    data: dict[str, Any] = outcome.json
    assert (data["tied"], data["group_size"], data["calibration_tokens"]) == (kind == "ternary", group_size, 256)
    assert data["perplexity_after"] == pytest.approx(data["perplexity_before"], rel=0.1)
    inspected: dict[str, Any] = edgedec("inspect", "out", "--json").json
    (scheme,) = (entry for entry in inspected["schemes"] if entry["kind"] == kind)
    assert scheme.get("tied", False) == (kind == "ternary")


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_bundle(edgedec: Edgedec, checkpoint: Path) -> None:
    options = ("--method", "ternary", "--planes", "2", "--calibration-tokens", "128", "--seed")
    for name, seed in (("one", "3"), ("two", "3"), ("other", "4")):
        assert edgedec("quantize", checkpoint, "-o", name, *options, seed).code == 0
    one, two, other = (Bundle.open(name).sha256 for name in ("one", "two", "other"))
    assert one == two != other


@pytest.mark.thorough
def test_a_model_too_large_to_write_its_own_text_is_refused(
    edgedec: Edgedec, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedec.quantize.calibration.SAMPLING_LIMIT_BYTES", 1000)
    planes = ("--method", "ternary", "--planes", "1")
    outcome = edgedec("quantize", checkpoint, "-o", "out", *planes)
    assert outcome.code == 2
    assert "pass --calibration FILE or none" in outcome.stderr
    assert not Path("out").exists()
    data: dict[str, Any] = edgedec("quantize", checkpoint, "-o", "out", *planes, "--calibration", "none", "--json").json
    assert (data["perplexity_before"], data["perplexity_after"], data["eval_tokens"]) == (None, None, 0)
    assert "perplexity before  -\n" in edgedec("quantize", checkpoint, "-o", "out").stdout


@pytest.mark.thorough
def test_a_tokenizer_can_be_read_from_another_folder(edgedec: Edgedec, checkpoint: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(checkpoint / name, bare)
    outcome = edgedec("quantize", bare, "-o", "out")
    assert outcome.code != 0
    assert "tokenizer.json" in outcome.stderr
    byte_tokenizer().save("tokenizer.json")
    assert edgedec("quantize", bare, "-o", "out", "--tokenizer", "tokenizer.json").code == 0


def test_a_folder_that_is_not_a_bundle_is_not_overwritten(edgedec: Edgedec, checkpoint: Path) -> None:
    Path("out").mkdir()
    Path("out/diary").write_text("dear")
    outcome = edgedec("quantize", checkpoint, "-o", "out")
    assert outcome.code == 2
    assert "it exists and holds no manifest.json" in outcome.stderr
    assert Path("out/diary").read_text() == "dear"


@pytest.mark.thorough
def test_workers_change_the_memory_alone(edgedec: Edgedec, checkpoint: Path) -> None:
    options = ("--method", "ternary", "--planes", "1", "--calibration", "none", "--eval-text", "none", "--json")
    alone: dict[str, Any] = edgedec("quantize", checkpoint, "-o", "alone", *options).json
    several: dict[str, Any] = edgedec("quantize", checkpoint, "-o", "several", "--workers", "2", *options).json
    assert Bundle.open("alone").sha256 == Bundle.open("several").sha256
    assert (several["perplexity_before"], several["perplexity_after"], several["eval_tokens"]) == (None, None, 0)
    assert several["peak_bytes"] > alone["peak_bytes"] + (10 << 20), "two processes, each with NumPy"


def test_an_unknown_pool_is_refused(edgedec: Edgedec, checkpoint: Path) -> None:
    outcome = edgedec("quantize", checkpoint, "-o", "out", "--pool", "slurm")
    assert outcome.code == 2
    assert "no 'slurm' among the worker pools; known: local, ray" in outcome.stderr
    assert not Path("out").exists()


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    ("words", "variable", "file", "pool"),
    [
        (["--executor", "slurm"], None, None, "slurm"),
        ([], "slurm", None, "slurm"),
        ([], None, "slurm", "slurm"),
        (["--executor", "slurm"], None, "other", "slurm"),
        (["--executor", "slurm", "--pool", "pbs"], None, None, "pbs"),
        (["--pool", "pbs"], "slurm", "other", "pbs"),
    ],
)
def test_executor_is_an_older_spelling_of_pool(
    edgedec: Edgedec, checkpoint: Path, words: list[str], variable: str | None, file: str | None, pool: str
) -> None:
    if file is not None:
        Path("edgedec.toml").write_text(f'[quantize]\nexecutor = "{file}"\n')
    environment = {} if variable is None else {"EDGEDEC_QUANTIZE_EXECUTOR": variable}
    outcome = edgedec("quantize", checkpoint, "-o", "out", *words, env=environment)
    assert (outcome.code, f"no {pool!r} among the worker pools" in outcome.stderr) == (2, True)


def test_the_older_spelling_is_not_shown(edgedec: Edgedec) -> None:
    shown = edgedec("quantize", "--help").stdout
    assert "--pool" in shown
    assert "--executor" not in shown
    assert "executor" not in edgedec("completion", "bash").stdout


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--group-size", "32"), "--group-size"),
        (("--method", "ternary", "--calibration-tokens", "9"), "--calibration-tokens"),
        (("--group-size", "32", "--calibration-tokens", "9"), "--group-size and --calibration-tokens"),
    ],
)
def test_options_of_planes_without_planes_are_refused(
    edgedec: Edgedec, checkpoint: Path, options: tuple[str, ...], names: str
) -> None:
    outcome = edgedec("quantize", checkpoint, "-o", "out", *options)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr == (
        f"edgedec: {names}: only ternary planes have a use for this; add --method ternary --planes 1, 2 or 3, or leave it "
        "out\n"
    )
    assert not Path("out").exists()


@pytest.mark.thorough
def test_a_ternary_gguf_of_qwen35_generates(edgedec: Edgedec, tmp_path: Path) -> None:
    words = make_qwen35_gguf.byte_vocabulary()
    settings = make_qwen35_gguf.config(64, vocab_size=len(words["tokenizer__ggml__tokens"]))
    model = make_qwen35_gguf.random_ternary(settings)
    make_qwen35_gguf.write(tmp_path / "m.gguf", settings, model, "PQ2_0", **words)
    Path("text").write_text("Hello, Hello! " * 6)
    options = ("--method", "ternary", "--eval-text", "text", "--json")
    outcome = edgedec("quantize", tmp_path / "m.gguf", *options, "-o", "b.edgedec")
    assert outcome.code == 0, outcome.stderr
    assert Bundle.open("b.edgedec").tensors["model.layers.0.linear_attn.out_proj.weight"].scheme.kind == "ternary"
    prompt = ("-p", "Hello", "-n", "8", "--temp", "0", "--json")
    outcome = edgedec("generate", "-m", "b.edgedec", "--device", "float_reference", *prompt)
    assert outcome.code == 0, outcome.stderr
    answer: dict[str, Any] = outcome.json
    assert answer["timings"]["prompt_n"] == 3, "He ll o"
    assert 1 <= len(answer["tokens"]) <= 8


def test_a_bundle_has_a_model_card(edgedec: Edgedec, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card has the licence, the figures and the command; the same command anywhere makes the same bundle."""
    shutil.copytree(checkpoint, "known")
    Path("known/README.md").write_text("---\nlicense: apache-2.0\n---\nA model.\n")
    Path("texts").mkdir()
    Path("texts/a text").write_text("?o" * 300)
    words = ("--method", "float", "--eval-text", Path("texts/a text").absolute())
    outcome = edgedec("quantize", "known", "-o", "one", *words)
    assert outcome.code == 0, outcome.stderr
    card = Path("one/README.md").read_text()
    assert '\nlicense: "apache-2.0"\nbase_model: "known"\n' in card
    assert "    edgedec quantize known --output BUNDLE --method float --eval-text 'a text'\n" in card
    assert "| perplexity of the bundle | " in card
    assert "| scored text | a text, " in card
    assert str(Path.cwd()) not in card
    monkeypatch.setenv("EDGEDEC_QUANTIZE_METHOD", "float")
    assert edgedec("quantize", Path("known").absolute(), "-o", "further/two", *words[2:]).code == 0
    assert Bundle.open("one").sha256 == Bundle.open("further/two").sha256


def test_a_card_without_perplexities(edgedec: Edgedec, checkpoint: Path) -> None:
    outcome = edgedec("quantize", checkpoint, "-o", "one", "--method", "float", "--eval-text", "none", "--seed", "7")
    assert outcome.code == 0, outcome.stderr
    card = Path("one/README.md").read_text()
    assert "| perplexity | not measured |" in card
    assert "edgedec quantize 'known answers' --output BUNDLE --method float --eval-text none --seed 7\n" in card
    assert "names no licence that could be read" in card
