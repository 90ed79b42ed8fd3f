"""Test several processes, whose result is that of one except for the order of float sums."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from tests.quantize.distil.support.make_teachers import tensors, write_teacher

pytestmark = pytest.mark.compare


def run(output: Path, teacher: Path, *launcher: str, extra: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    options = ["--steps", "3", "--every", "1", "--length", "16", "--batch-tokens", "128", "--warmup-steps", "0"]
    options += ["--text-tokens", "1000", "--device", "cpu", "--precision", "float32", "-t", "1", "--json", *extra]
    command = [sys.executable, *launcher, "-m", "edgedec", "distil", str(teacher), "-o", str(output), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)


def launcher(count: int) -> tuple[str, ...]:
    return ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count))


def valid(output: Path) -> list[float]:
    with (output.parent / f"{output.name}.run" / "loss.csv").open() as file:
        return [float(row["valid"]) for row in csv.DictReader(file)]


def test_two_processes_train_like_one(tmp_path: Path) -> None:
    """Compare losses, because Adam makes a full step of a gradient near zero, so that single weights differ."""
    teacher = write_teacher(tmp_path / "teacher")
    one, two = run(tmp_path / "one", teacher), run(tmp_path / "two", teacher, *launcher(2))
    assert (one.returncode, two.returncode) == (0, 0), one.stderr + two.stderr
    ours, theirs = json.loads(one.stdout), json.loads(two.stdout)  # one object, written by the first process alone
    assert theirs["perplexity_teacher"] == pytest.approx(ours["perplexity_teacher"], rel=1e-5)
    assert theirs["perplexity_student"] == pytest.approx(ours["perplexity_student"], rel=5e-3)
    assert valid(tmp_path / "two") == pytest.approx(valid(tmp_path / "one"), rel=2e-3)
    for name, values in tensors(tmp_path / "two").items():
        want = tensors(tmp_path / "one")[name].astype(np.float32)
        close = np.isclose(values.astype(np.float32), want, rtol=1e-2, atol=1e-2 * np.abs(want).max())
        assert close.mean() > 0.99, name
    again = run(tmp_path / "two", teacher, *launcher(2))
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["perplexity_student"] == theirs["perplexity_student"]
    alone = run(tmp_path / "two", teacher)
    assert alone.returncode == 2
    assert "processes was 2, is 1" in alone.stderr


def test_rows_that_two_processes_cannot_share_are_refused(tmp_path: Path) -> None:
    teacher = write_teacher(tmp_path / "teacher")
    process = run(tmp_path / "out", teacher, *launcher(2), extra=("--batch-tokens", "48"))
    assert process.returncode != 0
    assert "--batch-tokens 48 are 3 rows of 16, which cannot be divided into 2 equal parts" in process.stderr
    assert not (tmp_path / "out.run").exists()
