"""Test what is cached of a bundle's calibration, and when it is computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.reference.integer_profile.calibrate import calibrate
from edgedec.reference.integer_profile.calibration import Calibration
from edgedec.runtime.accelerator import calibrated as module
from edgedec.runtime.accelerator.calibrated import calibrated

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 40,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    write_random_bundle(tmp_path / "bundle", CONFIG, method="int8")
    return Bundle.open(tmp_path / "bundle")


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list to which each calibration from now on adds the SHA-256 of its bundle."""
    hashes: list[str] = []

    def counted(bundle: Bundle, **options: Any) -> Calibration:
        hashes.append(bundle.sha256)
        return calibrate(bundle, **options)

    monkeypatch.setattr(module, "calibrate", counted)
    return hashes


def test_a_bundle_is_calibrated_once(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = counting(monkeypatch)
    first = calibrated(bundle)
    assert calibrated(bundle) == first
    assert calibrated(Bundle.open(bundle.path)) == first
    assert hashes == [bundle.sha256]


@pytest.mark.thorough
def test_a_damaged_calibration_is_computed_again(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = counting(monkeypatch)
    first = calibrated(bundle)
    (file,) = (tmp_path / "a cache").rglob("*.json")
    for content in (b"", b"\xff", file.read_bytes()[:-100], b"{}"):
        file.write_bytes(content)
        assert calibrated(bundle) == first
    assert len(hashes) == 5


def test_changed_code_computes_the_calibration_again(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = counting(monkeypatch)
    calibrated(bundle)
    monkeypatch.setattr(module, "profile_code", lambda: "other")
    calibrated(bundle)
    assert len(hashes) == 2


def test_a_cache_that_cannot_be_written_is_no_error(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(module, "cache_folder", lambda: file)
    assert calibrated(bundle).tokens > 0
    assert "is not kept" in caplog.text
