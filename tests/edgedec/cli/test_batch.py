"""Test ``edgedec batch``: its output, its exit codes, and a run that is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgedec.runtime.session.batch import journal_path
from tests.edgedec.cli.conftest import Edgedec

REQUESTS: list[dict[str, Any]] = [{"prompt": "Once upon a time"}, {"prompt": "The little dog", "temperature": 0}]


def write(folder: Path, requests: list[dict[str, Any]]) -> Path:
    path = folder / "requests with a space.jsonl"
    path.write_text("".join(json.dumps(request) + "\n" for request in requests), "utf-8")
    return path


@pytest.mark.thorough
def test_the_command(edgedec: Edgedec, tmp_path: Path) -> None:
    path, output = write(tmp_path, REQUESTS), tmp_path / "out.jsonl"
    arguments = ["batch", str(path), "-m", "demo", "-o", str(output), "-n", "4", "--seed", "5", "-c", "128", "-np", "2"]
    done = edgedec(*arguments, "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout) == {"answered": 2, "kept": 0, "failed": 0, "output": str(output)}
    again = edgedec(*arguments)
    assert again.code == 0
    assert "2 were there already" in again.stderr
    other = edgedec(*arguments, "--temp", "0.1")
    assert other.code == 2
    assert "has answers to other requests" in other.stderr


@pytest.mark.thorough
def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    requests = [
        {"prompt": "Once upon a time", "seed": seed, "n_predict": 100, "ignore_eos": True} for seed in range(40)
    ]
    path, output = write(tmp_path, requests), tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "edgedec", "batch", str(path), "-m", "demo", "-o", str(output), "-np", "2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (journal_path(output).exists() and len(read_whole(output)) >= 2):
            pass
        process.send_signal(signal.SIGKILL)
    kept = len(read_whole(output))
    assert 2 <= kept < 40
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["kept"] == kept
    assert len(output.read_text().splitlines()) == 40


def read_whole(output: Path) -> list[bytes]:
    """Return the whole lines of the journal."""
    return journal_path(output).read_bytes().split(b"\n")[:-1]
