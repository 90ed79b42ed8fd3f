"""Test the quality gates on trained models: perplexity relative to the float model, on text sampled from it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# model -> checkpoint, tokenizer, and the largest growth of perplexity by method
GATES = {
    "stories260K": (
        "models/stories260K/stories260K.bin",
        "tokenizers/tok512.bin",
        {"int8": 1.005, "planes 2": 1.30, "planes 3": 1.03},
    ),
    "babyllama": (
        "models/babyllama-tok105/model5000.bin",
        "tokenizers/tok105.vocab",
        {"int8": 1.005, "planes 2": 1.07, "planes 3": 1.01},
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("model", list(GATES))
def test_perplexity_grows_within_its_limit(model: str, shared_data: Path, project_root: Path) -> None:
    checkpoint, tokenizer, gates = GATES[model]
    command = [sys.executable, "-m", "benchmarks.quality.perplexity", str(shared_data / checkpoint)]
    command += ["--tokenizer", str(shared_data / tokenizer), "--methods", *gates, "--json"]
    process = subprocess.run(command, cwd=project_root, capture_output=True, text=True, check=True)
    ratios = {name: row["ratio"] for name, row in json.loads(process.stdout)["methods"].items()}
    assert {name: ratio for name, ratio in ratios.items() if ratio > gates[name]} == {}
