"""What is kept of a bundle's calibration, and when it is made anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgedec.bundle import Bundle
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
    """SHA-256 of the bundles that are calibrated from now on."""
    made: list[str] = []

    def counted(bundle: Bundle, **options: Any) -> Calibration:
        made.append(bundle.sha256)
        return calibrate(bundle, **options)

    monkeypatch.setattr(module, "calibrate", counted)
    return made


def test_it_is_made_once(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    made = counting(monkeypatch)
    first = calibrated(bundle)
    assert calibrated(bundle) == first
    assert calibrated(Bundle.open(bundle.path)) == first
    assert made == [bundle.sha256]


def test_a_damaged_one_is_made_again(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = counting(monkeypatch)
    first = calibrated(bundle)
    (file,) = (tmp_path / "a cache").rglob("*.json")
    for content in (b"", b"\xff", file.read_bytes()[:-100], b"{}"):
        file.write_bytes(content)
        assert calibrated(bundle) == first
    assert len(made) == 5


def test_other_code_makes_another(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    made = counting(monkeypatch)
    calibrated(bundle)
    monkeypatch.setattr(module, "_code", lambda: "other")
    calibrated(bundle)
    assert len(made) == 2


def test_a_cache_that_cannot_be_written_is_no_error(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(module, "cache_folder", lambda: file)
    assert calibrated(bundle).tokens > 0
    assert "is not kept" in caplog.text
