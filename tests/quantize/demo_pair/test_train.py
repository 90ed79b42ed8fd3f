"""Test the recipe of the embedded pair, from its text to three checkpoints, with as few steps as there are stages."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from edgedec import demo
from edgedec.quantize.demo_pair.stages import read_package
from edgedec.quantize.distil.run_folder import RunFolder
from edgedec.quantize.methods.native import find_ternary
from edgedec.quantize.readers import open_checkpoint

pytestmark = pytest.mark.compare


def _command(folder: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "edgedec.quantize.demo_pair.train", "-o", str(folder), "--threads", "1"]
    sizes = ("--batch-tokens", "4096", "--shard-documents", "60", "--every", "1", "--package-every", "1")
    return [*command, *sizes, "--precision", "float32", *options]


def _train(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(folder, *options), capture_output=True, text=True, check=False)


def test_the_recipe_writes_three_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "a pair"
    first = _train(folder, "--steps", "2")
    assert first.returncode == 0, first.stderr
    target, draft, twin = (open_checkpoint(folder / "models" / name) for name in ("target", "draft", "twin"))
    shape = "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"
    assert [target.config[key] for key in shape] == [twin.config[key] for key in shape]
    assert target.tokenizer_json == draft.tokenizer_json == twin.tokenizer_json
    name = "model.layers.3.mlp.down_proj.weight"
    assert set(np.unique(find_ternary(target.load(name), name)[0])) == {-1, 0, 1}
    assert len(np.unique(np.abs(twin.load(name).astype(np.float32)))) > 100

    times = {file: file.stat().st_mtime_ns for file in folder.rglob("checkpoint.pt")}
    assert len(times) == 4
    again = _train(folder, "--steps", "2")
    assert again.returncode == 0, again.stderr
    assert {file: file.stat().st_mtime_ns for file in times} == times
    assert "step" not in again.stderr

    refusal = _train(folder, "--steps", "3")
    assert refusal.returncode == 2
    assert "recipe.steps was 2, is 3" in refusal.stderr


def test_a_killed_run_ends_with_the_bits_of_a_whole_one(tmp_path: Path) -> None:
    whole = _train(tmp_path / "whole", "--steps", "4")
    assert whole.returncode == 0, whole.stderr
    folder = tmp_path / "killed"
    with subprocess.Popen(
        _command(folder, "--steps", "4"), start_new_session=True, stderr=subprocess.DEVNULL
    ) as process:
        while not (folder / "trunk" / "checkpoint.pt").exists():
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    again = _train(folder, "--steps", "4")
    assert again.returncode == 0, again.stderr
    assert "trunk: 7867776 parameters, from step 0" not in again.stderr
    for name in ("target", "draft", "twin"):
        weights = [(tmp_path / run / "models" / name / "model.safetensors").read_bytes() for run in ("whole", "killed")]
        assert weights[0] == weights[1], name


def test_a_machine_without_the_run_continues_from_the_packages(tmp_path: Path) -> None:
    folder, stages = tmp_path / "pair", tmp_path / "stages"
    first = _train(folder, "--steps", "4", "--stages", str(stages))
    assert first.returncode == 0, first.stderr
    for name in ("trunk", "twin", "target", "draft"):
        assert (stages / f"{name}.csv").read_bytes() == (folder / name / "loss.csv").read_bytes()
    for name in ("target", "draft"):
        (stages / f"{name}.safetensors").unlink()
    shutil.rmtree(folder)
    second = _train(folder, "--steps", "4", "--stages", str(stages))
    assert second.returncode == 0, second.stderr
    assert "trunk: finished, from its package" in second.stderr
    assert "twin: finished, from its package" in second.stderr
    assert "target: 7867776 parameters, from step 0" in second.stderr
    assert not (folder / "trunk").exists()
    assert (folder / "text" / "tokenizer.json").read_bytes() == (stages / "tokenizer.json").read_bytes()

    continued = _train(tmp_path / "other", "--steps", "6", "--stages", str(stages))
    assert continued.returncode == 2
    assert "was trained with other settings" in continued.stderr


def test_a_run_goes_on_from_a_finished_one(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    first = _train(tmp_path / "first", "--steps", "4", "--stages", str(earlier), "--shard-steps", "2")
    assert first.returncode == 0, first.stderr
    options = ("--earlier", str(earlier), "--learning-rate", "1e-9", "--shard-steps", "2")
    folder = tmp_path / "second"
    second = _train(folder, "--steps", "2", *options)
    assert second.returncode == 0, second.stderr
    assert "trunk" not in second.stderr
    assert sorted(file.name for file in (folder / "text").glob("train-*")) == ["train-002.npy"]
    assert (folder / "text" / "tokenizer.json").read_bytes() == (earlier / "tokenizer.json").read_bytes()
    for name in ("twin", "draft"):  # the rate is so small that the weights hardly move
        before, after = (read_package(at / f"{name}.safetensors") for at in (earlier, folder / "stages"))
        assert before is not None
        assert after is not None
        for tensor, weight in before.weights.items():
            np.testing.assert_allclose(after.weights[tensor], weight, atol=1e-5)

    (earlier / "draft.safetensors").unlink()
    refusal = _train(tmp_path / "third", "--steps", "2", *options)
    assert refusal.returncode == 2
    assert "draft.safetensors is missing; finish that run first" in refusal.stderr

    refusal = _train(tmp_path / "fourth", "--steps", "2", "--earlier", str(folder / "stages"), "--layers", "2")
    assert refusal.returncode == 2
    assert "have 4 layers; give --layers 4" in refusal.stderr


def test_a_run_goes_on_from_the_shipped_pair(tmp_path: Path) -> None:
    folder = tmp_path / "pair"
    run = _train(
        folder, "--steps", "1", "--earlier", str(demo.TARGET.parent), "--learning-rate", "1e-9", "--shard-steps", "1"
    )
    assert run.returncode == 0, run.stderr
    assert "trunk" not in run.stderr
    assert [file.name for file in (folder / "text").glob("train-*")] == ["train-28334.npy"]  # 60 documents in a part
    for name, shipped in (("target", demo.TARGET), ("draft", demo.DRAFT)):  # the rate is so small that no weight moves
        ours, theirs = open_checkpoint(folder / "models" / name), open_checkpoint(shipped)
        assert json.loads(ours.tokenizer_json) == json.loads(theirs.tokenizer_json)
        for tensor in theirs.tensors:
            np.testing.assert_allclose(
                ours.load(tensor).astype(np.float32), theirs.load(tensor).astype(np.float32), rtol=1e-2, atol=1e-6
            )

    refusal = _train(tmp_path / "other", "--steps", "1", "--earlier", str(demo.TARGET.parent), "--layers", "2")
    assert refusal.returncode == 2
    assert f"--layers 2: the models of --earlier {demo.TARGET.parent} have 4 layers; give --layers 4" in refusal.stderr


def test_a_stage_continues_at_the_step_of_its_package(tmp_path: Path) -> None:
    folder, stages = tmp_path / "pair", tmp_path / "stages"
    with subprocess.Popen(
        _command(folder, "--steps", "6", "--stages", str(stages)), start_new_session=True, stderr=subprocess.DEVNULL
    ) as process:
        while not (stages / "trunk.safetensors").exists():
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    step = read_package(stages / "trunk.safetensors").step  # type: ignore[union-attr]  # it exists
    shutil.rmtree(folder)
    again = _train(folder, "--steps", "6", "--stages", str(stages))
    assert again.returncode == 0, again.stderr
    assert f"trunk: 7867776 parameters, from step {step}" in again.stderr or step == 4


def test_two_processes_train_the_pair_together(tmp_path: Path) -> None:
    """Check that the second process reads what the first one writes, and that only the first writes."""
    one, two = tmp_path / "one", tmp_path / "two"
    options = ("--steps", "2", "--batch-tokens", "8192")  # two rows of 4,096 tokens in the last steps: one per process
    alone = _train(one, *options)
    assert alone.returncode == 0, alone.stderr
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    interpreter, *arguments = _command(two, *options)
    together = subprocess.run([interpreter, *launcher, *arguments], capture_output=True, text=True, check=False)
    assert together.returncode == 0, together.stderr
    assert together.stdout.count("{") == 1
    for stage in ("trunk", "twin", "target", "draft"):
        ours, theirs = (RunFolder(path=folder / stage).rows() for folder in (one, two))
        assert [float(row["valid"]) for row in theirs] == pytest.approx([float(row["valid"]) for row in ours], rel=2e-3)
