"""Check that the kept measurements of drafts have the recipe of ``draft_law.py``, and measure one anew."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from edgedec import demo
from edgedec.cli import _draft_advice


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("benchmarks.speculation.draft_law")


@pytest.fixture(scope="module")
def kept() -> Any:
    return json.loads(demo.DRAFTS.read_text("utf-8"))


def test_the_kept_measurements_have_the_recipe_of_the_benchmark(kept: Any, benchmark: Any) -> None:
    shapes = [(draft["hidden_size"], draft["intermediate_size"], draft["heads"]) for draft in kept["drafts"]]
    assert shapes == sorted([*benchmark.SHAPES, (96, 256, 1)])
    assert kept["recipe"].endswith(benchmark.RECIPE)
    assert kept["temperature"] == benchmark.TEMPERATURE == _draft_advice.TEMPERATURE
    assert kept["positions"] > 5000
    sizes = [draft["parameters"] for draft in kept["drafts"]]
    assert sizes[-1] / sizes[0] >= 16


@pytest.mark.thorough
def test_the_first_draft_measures_as_the_kept_one(kept: Any, benchmark: Any, tmp_path: Path) -> None:
    target, first = (benchmark.first_bundle(name, tmp_path) for name in ("target", "draft"))
    measured = benchmark.measure(target, [("first draft", first)])
    (expected,) = [draft for draft in kept["drafts"] if draft["name"] == "first draft"]
    (draft,) = measured["drafts"]
    # The stock operators of other processors round in another way.
    assert draft["chosen"] == pytest.approx(expected["chosen"], abs=0.005)
    assert draft["drawn"] == pytest.approx(expected["drawn"], abs=0.005)
    assert measured["positions"] == kept["positions"]
    for end in ("floor", "ceiling"):
        assert measured[end] == pytest.approx(kept[end], abs=0.005)
