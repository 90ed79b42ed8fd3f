"""The recipe of the embedded pair, from its text to three checkpoints, with as few steps as there are stages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from edgedec.quantize.methods.native import native_ternary
from edgedec.quantize.readers import open_checkpoint


def _train(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgedec.quantize.demo_pair.train", "-o", str(folder), "--threads", "1"]
    sizes = ("--batch-tokens", "1024", "--train-tokens", "20000", "--every", "1")
    return subprocess.run([*command, *sizes, *options], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_recipe(tmp_path: Path) -> None:
    folder = tmp_path / "a pair"
    first = _train(folder, "--steps", "2")
    assert first.returncode == 0, first.stderr
    target, draft, twin = (open_checkpoint(folder / "models" / name) for name in ("target", "draft", "twin"))
    shape = "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"
    assert [target.config[key] for key in shape] == [twin.config[key] for key in shape]
    assert target.tokenizer_json == draft.tokenizer_json == twin.tokenizer_json
    name = "model.layers.3.mlp.down_proj.weight"
    assert set(np.unique(native_ternary(target.load(name), name)[0])) == {-1, 0, 1}
    assert len(np.unique(np.abs(twin.load(name).astype(np.float32)))) > 100

    written = {file: file.stat().st_mtime_ns for file in folder.rglob("checkpoint.pt")}
    assert len(written) == 4
    again = _train(folder, "--steps", "2")
    assert again.returncode == 0, again.stderr
    assert {file: file.stat().st_mtime_ns for file in written} == written
    assert "step" not in again.stderr

    other = _train(folder, "--steps", "3")
    assert other.returncode == 2
    assert "recipe.steps was 2, is 3" in other.stderr
