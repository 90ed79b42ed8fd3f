"""Check that the kept measurements of drafts have the recipe of ``draft_law.py``, and measure the shipped draft."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.cli import _draft_advice
from edgedec.errors import UsageError


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("benchmarks.speculation.draft_law")


@pytest.fixture(scope="module")
def kept() -> Any:
    return json.loads(demo.DRAFTS.read_text("utf-8"))


def test_the_kept_measurements_have_the_recipe_of_the_benchmark(kept: Any, benchmark: Any) -> None:
    shapes = [(draft["hidden_size"], draft["intermediate_size"], draft["heads"]) for draft in kept["drafts"]]
    assert shapes == list(benchmark.SHAPES)
    assert kept["recipe"].endswith(benchmark.RECIPE)
    assert kept["temperature"] == benchmark.TEMPERATURE == _draft_advice.TEMPERATURE
    assert kept["positions"] > 5000
    sizes = [draft["parameters"] for draft in kept["drafts"]]
    assert sizes[-1] / sizes[0] >= 16


@pytest.mark.thorough
def test_the_shipped_draft_is_accepted_as_the_report_says(benchmark: Any, tmp_path: Path) -> None:
    """Check the shares of one guess in docs/reports/speculation.md: 0.788 of likeliest tokens and 0.810 of drawn ones."""
    target = benchmark.target_bundle(demo.TARGET, tmp_path)
    measured = benchmark.measure("demo", target, [("d", Bundle.open(demo.bundle_path("demo-draft")))], demo.HELD_OUT)
    (draft,) = measured["drafts"]
    # The stock operators of other processors round in another way, and the report has fewer positions.
    assert draft["chosen"] == pytest.approx(0.788, abs=0.02)
    assert draft["drawn"] == pytest.approx(0.810, abs=0.02)
    assert measured["positions"] > 5000
    assert measured["floor"]["chosen"] < draft["chosen"] < measured["ceiling"]["chosen"]


def test_drafts_of_another_target_are_refused(benchmark: Any, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text(name, "utf-8")
    drafts = tmp_path / "drafts"
    drafts.mkdir()
    for _ in range(2):
        benchmark._check_folder(drafts, tmp_path / "one")
    with pytest.raises(UsageError, match="its drafts are of another target than"):
        benchmark._check_folder(drafts, tmp_path / "other")
    (drafts / "target.sha256").unlink()
    (drafts / "h32").mkdir()
    with pytest.raises(UsageError, match="its drafts are of another target than"):
        benchmark._check_folder(drafts, tmp_path / "one")
