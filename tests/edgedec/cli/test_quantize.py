"""Test ``edgedec quantize``, which turns a checkpoint into a bundle and prints a table."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.cli import quantize
from edgedec.quantize.hints import lost_hint
from edgedec.quantize.options import QuantizeOptions
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.kv_precision import measured_ratios
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
    "relative_error",
    "seconds",
    "spent",
    "notes",
    "peak_bytes",
}
SPENT = ["reading", "writing text", "quantizing", "writing", "reading back", "scoring", "model card", "rest"]


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
def test_the_seconds_add_up(edgedec: Edgedec, checkpoint: Path) -> None:
    options = ("--method", "ternary", "--planes", "2", "--calibration-tokens", "128")
    data: dict[str, Any] = edgedec("quantize", checkpoint, "-o", "out", *options, "--json").json
    assert list(data["spent"]) == SPENT
    assert all(data["spent"][name] > 0 for name in SPENT)
    assert data["seconds"] == pytest.approx(sum(data["spent"].values()), abs=1e-6)
    unscored: dict[str, Any] = edgedec(
        "quantize", checkpoint, "-o", "out", *options, "--eval-text", "none", "--json"
    ).json
    assert unscored["spent"]["scoring"] == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ({"reading": 0.26, "quantizing": 1.26, "rest": 0.04}, "1.6 (reading 0.3, quantizing 1.3)"),
        ({"reading": 0.04, "rest": 0.04}, "0.0"),
    ],
)
def test_the_printed_seconds_add_up_too(seconds: dict[str, float], text: str) -> None:
    assert quantize._seconds(seconds) == text


@pytest.mark.parametrize(
    ("parameters", "tokens", "window"),
    [(1_000, 6144, 256), (8_000_000, 6144, 256), (32_000_000, 1536, 32), (110_000_000, 512, 32), (8 << 30, 512, 32)],
)
def test_a_large_model_scores_fewer_tokens(
    monkeypatch: pytest.MonkeyPatch, parameters: int, tokens: int, window: int
) -> None:
    monkeypatch.setattr("edgedec.cli.quantize.EVAL_TOKENS", 6144)
    monkeypatch.setattr("edgedec.api.WINDOW_TOKENS", 256)
    info = SimpleNamespace(shape=(parameters // 1000, 1000))
    found = quantize._eval_tokens(cast("Any", SimpleNamespace(tensors={"a": info})))
    assert (found, quantize._window_tokens(found)) == (tokens, window)


def test_the_number_of_scored_tokens_can_be_chosen(edgedec: Edgedec, checkpoint: Path) -> None:
    data: dict[str, Any] = edgedec("quantize", checkpoint, "-o", "out", "--eval-tokens", "128", "--json").json
    assert data["eval_tokens"] == 128 - 128 // 32
    Path("text").write_text(f"o{ENDLESS}" * 60)
    options = ("--eval-text", "text", "--eval-tokens", "128", "--json")
    data = edgedec("quantize", checkpoint, "-o", "out", *options).json
    assert data["eval_tokens"] == 128 - 128 // 64


@pytest.mark.thorough
def test_one_plane_of_a_float_model_is_warned_about(edgedec: Edgedec, checkpoint: Path) -> None:
    options = ("--method", "ternary", "--planes", "1", "--calibration", "none")
    outcome = edgedec("quantize", checkpoint, "-o", "one", *options, "--eval-text", "none", "--json")
    data: dict[str, Any] = outcome.json
    (note,) = data["notes"]
    assert 0.3 < data["relative_error"] < 0.6
    assert "the stored matrices differ from the weights by" in note
    for step in ("--planes 2 or 3", "--method int4", "edgedec distil"):
        assert step in note
    assert f"warning: one: {note}" in outcome.stderr
    # This model's layers hardly matter, so that a measurement tells that nothing is lost.
    assert edgedec("quantize", checkpoint, "-o", "one", *options, "--json").json["notes"] == []
    words = ("--method", "ternary", "--planes", "2", "--calibration", "none", "--eval-text", "none")
    assert edgedec("quantize", checkpoint, "-o", "two", *words, "--json").json["notes"] == []


@pytest.mark.parametrize(
    ("options", "before", "after", "expected"),
    [
        (QuantizeOptions(method="ternary", planes=1), 10.0, 623.4, "(+6,134 %). One ternary plane suits"),
        (QuantizeOptions(method="ternary", planes=2), 10.0, 20.0, "Use --planes 3 or --method int8"),
        (QuantizeOptions(method="int4"), 10.0, 15.1, "Use --method int8"),
        (QuantizeOptions(method="int8"), 10.0, math.inf, "Use --method float"),
        (QuantizeOptions(method="ternary", planes=1), 10.0, 14.9, None),
    ],
)
def test_a_lost_model_is_told_by_its_perplexity(
    options: QuantizeOptions, before: float, after: float, expected: str | None
) -> None:
    hint = lost_hint(options, before=before, after=after, error=0.5)
    assert (hint is None) if expected is None else (hint is not None and expected in hint)


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


@pytest.mark.parametrize(("inside", "problem"), [("out", "holds no manifest.json"), ("file", "file is not a folder")])
def test_the_place_is_looked_at_before_a_text_is_written(
    edgedec: Edgedec, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, inside: str, problem: str
) -> None:
    monkeypatch.setattr("edgedec.quantize.calibration.sample_scored", None)  # a call would fail
    Path("out").mkdir()
    Path("out/diary").write_text("dear")
    Path("file").write_text("dear")
    output = "out" if inside == "out" else "file/bundle"
    outcome = edgedec("quantize", checkpoint, "-o", output, "--method", "int4")
    assert outcome.code == 2
    assert problem in outcome.stderr


def test_a_disk_without_room_is_refused_before_a_text_is_written(
    edgedec: Edgedec, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedec.quantize.calibration.sample_scored", None)
    monkeypatch.setattr("edgedec.bundle.atomic.shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    outcome = edgedec("quantize", checkpoint, "-o", "out", "--method", "int4")
    assert outcome.code == 1
    assert "cannot write out: it needs at least" in outcome.stderr
    assert "has 1,000 free; free some space" in outcome.stderr


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


@pytest.mark.thorough
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


@pytest.mark.skipif(usable() is None, reason="the CPU kernels are not usable, whose keys and values have fewer bits")
def test_a_bundle_says_what_fewer_bits_of_keys_and_values_cost(
    edgedec: Edgedec, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lower the number of tokens that this takes, which a small model writes in seconds only on an idle machine."""
    few = checkpoint.parent / "few"
    options = ("quantize", checkpoint, "--method", "int8", "--eval-tokens", "128")
    edgedec(*options, "-o", few)
    assert measured_ratios(Bundle.open(few)) == {}
    monkeypatch.setattr(quantize, "_KV_TOKENS", 100)
    edgedec(*options, "-o", checkpoint.parent / "more")
    ratios = measured_ratios(Bundle.open(checkpoint.parent / "more"))
    assert list(ratios) == [8, 4]
    assert all(ratio == pytest.approx(1, rel=0.05) for ratio in ratios.values())
    card = (checkpoint.parent / "more" / "README.md").read_text(encoding="utf-8")
    assert f"keys and values of 4 bits | {100 * (ratios[4] - 1):+.2f} % |" in card
