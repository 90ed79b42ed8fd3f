"""Test the parts of benchmarks/quality/quantize.py that need no idle machine: checkpoints, a process tree's memory."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError, EdgedecError, UsageError
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.schemes import TernaryWeight

PIECES = 400


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("benchmarks.quality.quantize")


@pytest.fixture(scope="module")
def checkpoints(benchmark: Any) -> Any:
    return sys.modules["benchmarks.quality.quantize_checkpoints"]


@pytest.fixture(scope="module")
def tree(benchmark: Any) -> Any:
    return sys.modules["benchmarks.support.process_tree"]


@pytest.fixture
def shape(checkpoints: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(checkpoints, "_PIECES", PIECES)
    return checkpoints.Shape(
        name="tiny", hidden=64, inter=256, layers=3, heads=2, vocab=PIECES + 2, tied=False, shards=3
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.thorough
@pytest.mark.parametrize("native", [False, True])
def test_the_checkpoint_quantizes_as_ternary(tmp_path: Path, checkpoints: Any, shape: Any, native: bool) -> None:
    home = checkpoints.write_checkpoint(tmp_path, shape, native=native)
    checkpoint = open_checkpoint(home)
    assert len(list(home.glob("*.safetensors"))) == 3
    assert sum(path.stat().st_size for path in home.glob("*.safetensors")) > checkpoints.checkpoint_bytes(shape, native)
    quantize(checkpoint, tmp_path / "b", QuantizeOptions(method="ternary"), vocab_limit=PIECES)
    bundle = Bundle.open(tmp_path / "b")
    kinds = {name: tensor.scheme.kind for name, tensor in bundle.tensors.items() if len(tensor.shape) == 2}
    assert kinds.pop("model.embed_tokens.weight") == "float"
    assert kinds.pop("lm_head.weight") == "int8"
    assert set(kinds.values()) == {"ternary"}
    weight = bundle.weight("model.layers.2.mlp.up_proj.weight")
    assert isinstance(weight, TernaryWeight)
    assert set(np.unique(weight.trits)) == {-1, 0, 1}


def test_an_interrupted_checkpoint_is_completed(tmp_path: Path, checkpoints: Any, shape: Any) -> None:
    home = checkpoints.write_checkpoint(tmp_path, shape)
    before, times = contents(home), {path.name: path.stat().st_mtime_ns for path in home.iterdir()}
    missing_shard = home / "model-00002-of-00003.safetensors"
    missing_shard.unlink()
    (home / "config.json").unlink()  # it is written last
    assert checkpoints.write_checkpoint(tmp_path, shape) == home
    assert contents(home) == before
    present_shard = home / "model-00001-of-00003.safetensors"
    assert present_shard.stat().st_mtime_ns == times[present_shard.name]


def test_a_disk_that_is_too_small_is_refused(
    tmp_path: Path, checkpoints: Any, shape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=100, f_frsize=4096))
    with pytest.raises(UsageError, match=r"needs 0\.0 GB of disk, 0\.0 GB are free; .* --work"):
        checkpoints.write_checkpoint(tmp_path, shape)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_only_its_own_files_are_removed(tmp_path: Path, checkpoints: Any, shape: Any) -> None:
    home = checkpoints.write_checkpoint(tmp_path, shape)
    (home / "diary.txt").write_text("dear")
    with pytest.raises(EdgedecError, match="holds other files and cannot be removed"):
        checkpoints.remove_checkpoint(home)
    assert [path.name for path in home.iterdir()] == ["diary.txt"]
    (home / "diary.txt").unlink()
    checkpoints.remove_checkpoint(checkpoints.write_checkpoint(tmp_path, shape))
    assert not home.exists()


def test_the_shapes_equal_the_published_ones(checkpoints: Any) -> None:
    large, seven = checkpoints.SHAPES["0.73b"], checkpoints.SHAPES["7b"]
    assert checkpoints.checkpoint_bytes(large, False) == pytest.approx(2 * 0.729e9, rel=0.01)
    assert checkpoints.checkpoint_bytes(seven, True) == pytest.approx(2 * 6.74e9, rel=0.01)
    assert sum(len(shard) for shard in checkpoints._cut(seven, True)) == len(seven.tensors(True))


_ALLOCATES = """
import subprocess, sys
held = b"x" * ({own} << 20)
if {child}:
    subprocess.run([sys.executable, "-c", "import time; held = b'x' * ({child} << 20); time.sleep(0.5)"], check=True)
import time; time.sleep(0.2)
print("done")
"""


@pytest.mark.thorough
def test_memory_of_a_process_and_its_child_is_added(tree: Any) -> None:
    def peak(own: int, child: int) -> Any:
        return tree.run_tree([sys.executable, "-c", _ALLOCATES.format(own=own, child=child)])

    idle, alone, parent_and_child = peak(0, 0), peak(64, 0), peak(64, 96)
    assert parent_and_child.output == "done\n"
    assert (alone.processes, parent_and_child.processes) == (1, 2)
    assert 60 < (alone.peak_bytes - idle.peak_bytes) / (1 << 20) < 80
    assert 90 < (parent_and_child.peak_bytes - alone.peak_bytes) / (1 << 20) < 130
    assert parent_and_child.seconds > 0.6
    assert parent_and_child.cpu_seconds > 0


def test_the_output_of_a_failing_command_is_reported(tree: Any) -> None:
    with pytest.raises(DeviceError, match="no such weight"):
        tree.run_tree([sys.executable, "-c", "import sys; sys.exit('no such weight')"])


def test_figures_and_verdicts_are_printed(benchmark: Any) -> None:
    assert benchmark.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert benchmark._verdict(None, 1.0) == "-"
    assert "MISSES" in benchmark._verdict(1.2, 1.0)
    assert "MISSES" not in benchmark._verdict(1.0, 1.0)


def test_different_models_are_refused_as_peers(tmp_path: Path, benchmark: Any, checkpoints: Any, shape: Any) -> None:
    from edgedec.quantize.exporters.gguf.export import export_gguf

    home = checkpoints.write_checkpoint(tmp_path, shape, native=True)
    quantize(open_checkpoint(home), tmp_path / "b", QuantizeOptions(method="ternary"), vocab_limit=PIECES)
    bundle = Bundle.open(tmp_path / "b")
    export_gguf(bundle, tmp_path / "same.gguf")
    assert benchmark.same_trits(tmp_path / "b", tmp_path / "same.gguf") == 1
    different = checkpoints.write_checkpoint(tmp_path / "other", shape, native=False)
    config = json.loads((different / "config.json").read_text())
    assert config["architectures"] == ["BitnetForCausalLM"]
    quantize(open_checkpoint(different), tmp_path / "o", QuantizeOptions(method="ternary"), vocab_limit=PIECES)
    with pytest.raises(DeviceError, match="the times cannot be compared"):
        benchmark.same_trits(tmp_path / "o", tmp_path / "same.gguf")
