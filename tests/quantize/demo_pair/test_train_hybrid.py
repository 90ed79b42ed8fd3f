"""Test the recipe of the embedded hybrid with as few steps as there are stages."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from edgedec import demo
from edgedec.quantize.demo_pair.train_hybrid import CONFIG
from edgedec.quantize.methods.native import find_ternary
from edgedec.quantize.readers import open_checkpoint
from tests.quantize.readers.support.make_rotated_gguf import write_folded

pytestmark = pytest.mark.compare

NARROW = ("linear_attn.in_proj_a.weight", "linear_attn.in_proj_b.weight")


def train(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgedec.quantize.demo_pair.train_hybrid", "-o", str(folder), "--threads", "1"]
    sizes = ("--batch-tokens", "4096", "--shard-documents", "60", "--every", "1", "--package-every", "1")
    return subprocess.run(
        [*command, *sizes, "--precision", "float32", *options], capture_output=True, text=True, check=False
    )


def test_the_recipe_writes_a_ternary_hybrid_and_goes_on_from_packages(tmp_path: Path) -> None:
    folder = tmp_path / "hybrid"
    options = ("--steps", "2")
    first = train(folder, *options)
    assert first.returncode == 0, first.stderr
    checkpoint = open_checkpoint(folder / "models" / "target")
    assert {key: checkpoint.config[key] for key in CONFIG} == CONFIG
    assert checkpoint.tokenizer_json == open_checkpoint(demo.DRAFT).tokenizer_json
    matrices = [name for name, info in checkpoint.tensors.items() if ".layers." in name and len(info.shape) == 2]
    for name in matrices:
        if name.endswith(NARROW):
            assert len(np.unique(np.abs(checkpoint.load(name).astype(np.float32)))) > 100
        else:
            assert set(np.unique(find_ternary(checkpoint.load(name), name)[0])) == {-1, 0, 1}
    weights = (folder / "models" / "target" / "model.safetensors").read_bytes()

    (folder / "stages" / "target.safetensors").unlink()
    for part in ("trunk", "target", "models"):
        shutil.rmtree(folder / part)
    second = train(folder, *options)
    assert second.returncode == 0, second.stderr
    assert "trunk: finished, from its package" in second.stderr
    assert "target: 7760496 parameters, from step 0" in second.stderr
    assert len((folder / "models" / "target" / "model.safetensors").read_bytes()) == len(weights)


def test_a_teacher_that_is_not_there_and_too_few_steps_are_refused(tmp_path: Path) -> None:
    refusal = train(tmp_path / "one", "--steps", "2", "--teacher", str(tmp_path / "none"))
    assert refusal.returncode == 2
    assert f"{tmp_path / 'none'}: no such checkpoint" in refusal.stderr
    refusal = train(tmp_path / "two", "--steps", "1")
    assert refusal.returncode == 2
    assert "--steps must be at least 2, one for each stage, not 1" in refusal.stderr


def test_a_teacher_without_a_tokenizer_or_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    """Without the refusals, the first would train a tokenizer of its own, and the second would fail after the text."""
    alone = tmp_path / "model.gguf"
    write_folded(alone, open_checkpoint(demo.TARGET), 64, [384, 1024])
    refusal = train(tmp_path / "one", "--steps", "2", "--teacher", str(alone))
    assert refusal.returncode == 2
    assert "has no tokenizer.json, which the student takes" in refusal.stderr
    other = shutil.copytree(demo.TARGET, tmp_path / "other")
    config = json.loads((other / "config.json").read_text("utf-8"))
    (other / "config.json").write_text(json.dumps(config | {"vocab_size": 2050}), "utf-8")
    refusal = train(tmp_path / "two", "--steps", "2", "--teacher", str(other))
    assert refusal.returncode == 2
    assert "its vocabulary has 2,050 tokens, and the student's 2,048" in refusal.stderr
