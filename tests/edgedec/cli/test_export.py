"""Test ``edgedec export``, which turns a bundle into a file of another program."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedec.schemes import TernaryScheme
from tests.edgedec.cli.conftest import Edgedec
from tests.quantize.exporters.gguf.test_export import write

FILES = {
    "gguf": {"out"},
    "onnx": {"model.onnx", "weights.bin", "genai_config.json", "tokenizer.json", "tokenizer_config.json"},
    "safetensors": {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"},
}


@pytest.fixture(scope="module")
def ternary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    write(folder / "a bundle", TernaryScheme())
    return folder / "a bundle"


@pytest.mark.parametrize("name", FILES)
def test_each_format_writes_its_files(edgedec: Edgedec, ternary: Path, tmp_path: Path, name: str) -> None:
    outcome = edgedec("export", ternary, "--format", name, "-o", tmp_path / "out", "--json")
    assert outcome.code == 0, outcome.stderr
    result = outcome.json
    assert set(result) == {"output", "format", "bytes", "files", "tensors", "read_by"}
    assert (result["output"], result["format"]) == (str(tmp_path / "out"), name)
    assert set(result["files"]) == FILES[name]  # type: ignore[call-overload]
    files = [tmp_path / "out"] if name == "gguf" else list((tmp_path / "out").iterdir())
    assert result["bytes"] == sum(file.stat().st_size for file in files)


@pytest.mark.thorough
def test_an_exported_checkpoint_can_be_quantized_again(edgedec: Edgedec, ternary: Path, tmp_path: Path) -> None:
    assert edgedec("export", ternary, "-o", tmp_path / "m.gguf").code == 0
    outcome = edgedec("quantize", tmp_path / "m.gguf", "--method", "ternary", "-o", tmp_path / "b", "--json")
    assert outcome.code == 0, outcome.stderr
    assert outcome.json["method"] == "ternary"


def test_the_files_are_printed_as_a_table(edgedec: Edgedec, ternary: Path, tmp_path: Path) -> None:
    outcome = edgedec("export", ternary, "-o", tmp_path / "m.gguf")
    assert "14 TQ2_0" in outcome.stdout
    assert "m.gguf" in outcome.stdout


def test_the_output_says_who_reads_the_type(edgedec: Edgedec, ternary: Path, tmp_path: Path) -> None:
    outcome = edgedec("export", ternary, "-o", tmp_path / "m.gguf", "--trits", "Q2_0")
    assert "read by  Q2_0: llama.cpp since July 2026; not the Python package gguf 0.19" in outcome.stdout
    assert "--trits F16 keeps all trits, and --type f16 makes every matrix F16" in outcome.stderr
    outcome = edgedec("export", ternary, "-o", tmp_path / "m.gguf", "--type", "F16", "--json")
    assert (outcome.code, outcome.json["read_by"]) == (0, None)
    outcome = edgedec("export", ternary, "-o", tmp_path / "m", "--format", "onnx", "--type", "f16")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "--type is for --format gguf" in outcome.stderr


def test_context_and_bits_are_options_of_web_only(edgedec: Edgedec, ternary: Path, tmp_path: Path) -> None:
    for flags in (("-c", "64"), ("--kv-bits", "8")):
        outcome = edgedec("export", ternary, *flags, "-o", tmp_path / "m.gguf")
        assert outcome.code == 2
        assert "--ctx-size and --kv-bits are for --format web" in outcome.stderr
    for flags, words in (
        (("-c", "1"), "--ctx-size must be 2 to "),
        (("--kv-bits", "4"), "--kv-bits must be 16, 8 or 32"),
    ):
        outcome = edgedec("export", ternary, "--format", "web", *flags, "-o", tmp_path / "site")
        assert outcome.code == 2
        assert words in outcome.stderr


def test_a_draft_is_exported_to_onnx_only(edgedec: Edgedec, ternary: Path, tmp_path: Path) -> None:
    outcome = edgedec("export", ternary, "--format", "onnx", "-md", ternary, "-o", tmp_path / "m")
    assert outcome.code == 0, outcome.stderr
    assert (tmp_path / "m" / "draft" / "model.onnx").is_file()
    outcome = edgedec("export", ternary, "-md", ternary, "-o", tmp_path / "m.gguf")
    assert outcome.code == 2
    assert "--model-draft is for --format onnx" in outcome.stderr


def test_an_unknown_format_is_refused(edgedec: Edgedec, ternary: Path, tmp_path: Path) -> None:
    outcome = edgedec("export", ternary, "--format", "pickle", "-o", tmp_path / "m")
    assert outcome.code == 2
    assert "--format must be one of gguf, onnx, safetensors, web, not 'pickle'" in outcome.stderr


def test_a_link_stays_a_link(edgedec: Edgedec, ternary: Path) -> None:
    Path("disk").mkdir()
    Path("model.gguf").symlink_to("disk/real.gguf")
    for _ in range(2):
        outcome = edgedec("export", ternary, "-o", "model.gguf", "--json")
        assert outcome.code == 0, outcome.stderr
        assert Path("model.gguf").is_symlink()
        assert Path("disk/real.gguf").read_bytes()[:4] == b"GGUF"
        assert outcome.json["bytes"] == Path("disk/real.gguf").stat().st_size
        assert [file.name for file in Path("disk").iterdir()] == ["real.gguf"]


def test_a_folder_in_place_of_a_gguf_file_is_refused(edgedec: Edgedec, ternary: Path) -> None:
    Path("models").mkdir()
    outcome = edgedec("export", ternary, "-o", "models")
    assert outcome.code == 2
    assert "models: it is a folder; give the name of a file, such as " in outcome.stderr


@pytest.mark.parametrize("name", ["gguf", "onnx", "safetensors", "web"])
def test_a_disk_without_room_is_refused(
    edgedec: Edgedec, ternary: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("edgedec.bundle.atomic.shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    outcome = edgedec("export", ternary, "-o", "out", "--format", name)
    assert outcome.code == 1
    assert "cannot write out: it needs at least" in outcome.stderr
    assert not Path("out").exists()
