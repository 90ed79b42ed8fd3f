"""Test that the tokenizer of an exported folder is read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.quantize.exporters import folder_tokenizer
from edgedec.quantize.exporters.folder_tokenizer import tokenizer_config
from edgedec.quantize.exporters.onnx import export_onnx
from edgedec.quantize.exporters.safetensors import export_safetensors
from edgedec.quantize.readers import open_checkpoint
from tests.quantize.exporters.support.tokenizer_styles import STYLES, write_bundle


@pytest.mark.parametrize("style", ["llama 2", "llama 3", "metaspace first", "rstrip", "lowercase"])
def test_a_folder_has_the_tokenizer_all_ends_and_the_template(tmp_path: Path, style: str) -> None:
    bundle = write_bundle(tmp_path / "b", STYLES[style](), eos=(2, 5, 1, 7), template="{{ messages }}")
    export_safetensors(bundle, tmp_path / "m")
    read = open_checkpoint(tmp_path / "m")
    assert (read.bos_token_id, read.eos_token_ids) == (bundle.tokens.bos, (2, 5, 1, 7))
    assert read.chat_template == "{{ messages }}"
    export_onnx(bundle, tmp_path / "o")


def test_the_reader_s_notes_about_the_unfinished_folder_are_not_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    export_safetensors(write_bundle(tmp_path / "b", STYLES["gpt-2"](), own_key=2), tmp_path / "m")
    assert "own_key" not in caplog.text
    open_checkpoint(tmp_path / "m")
    assert "nothing reads the keys own_key (2)" in caplog.text


def _lowercase(bundle: Bundle, folder: Path) -> None:
    tree = json.loads(bundle.tokenizer_file.read_bytes()) | {"normalizer": {"type": "Lowercase"}}
    (folder / "tokenizer.json").write_text(json.dumps(tree), "utf-8")


@pytest.mark.parametrize("export", [export_safetensors, export_onnx])
def test_another_tokenizer_is_refused_and_nothing_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: Callable[[Bundle, Path], Any]
) -> None:
    bundle = write_bundle(tmp_path / "b", STYLES["gpt-2"]())
    monkeypatch.setattr(f"{export.__module__}.write_tokenizer", _lowercase)
    with pytest.raises(
        UnsupportedError, match=r"b: its tokenizer would be another one .*: 'Once upon a time' would be"
    ):
        export(bundle, tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_other_ends_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write_bundle(tmp_path / "b", STYLES["gpt-2"](), eos=(2, 5))
    monkeypatch.setattr(
        "edgedec.quantize.exporters.safetensors.with_special_ids",
        lambda bundle, config: {**config, "bos_token_id": 0, "eos_token_id": 2},
    )
    with pytest.raises(UnsupportedError, match=r"its ends of a text \(2, 5\) would be \(2,\) in a Hugging Face folder"):
        export_safetensors(bundle, tmp_path / "m")
    assert folder_tokenizer.with_special_ids(bundle, {})["eos_token_id"] == [2, 5]


def test_an_end_that_is_no_added_token_is_not_made_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bundle = write_bundle(tmp_path / "b", STYLES["gpt-2"](), eos=(50,), template="{{ bos_token }}{{ eos_token }}")
    settings = tokenizer_config(bundle)
    assert settings["bos_token"] == "<|begin|>"
    assert "eos_token" not in settings
    assert "its template's eos_token is no added token, and is empty in other programs" in caplog.text
