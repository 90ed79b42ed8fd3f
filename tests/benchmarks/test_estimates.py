"""Test that the figures of drafters are those that the benchmark measures."""

from __future__ import annotations

import importlib
import json

import pytest

from edgedec.runtime.planning.drafter_figures import FIGURES

estimates = importlib.import_module("benchmarks.speculation.estimates")


@pytest.mark.thorough
@pytest.mark.parametrize(("drafter", "kind"), [("copy", "copying"), ("model", "story")])
def test_the_file_has_what_the_benchmark_measures(drafter: str, kind: str) -> None:
    """Measure one share again. No clock decides, and logits have the same bits everywhere, so it is equal."""
    data = json.loads(FIGURES.read_text("utf-8"))
    prompts, tokens = data["measured"]["prompts"], data["measured"]["tokens"]
    measured = estimates.drafted(drafter, estimates.tasks_of(prompts, tokens, (kind,)), tokens)
    assert measured["acceptance"] == {kind: data["drafters"][drafter]["acceptance"][kind]}, (
        f"run .venv/bin/python -m benchmarks.speculation.estimates --write, which writes {FIGURES.name}"
    )


def test_every_drafter_with_figures_is_measured() -> None:
    assert set(json.loads(FIGURES.read_text("utf-8"))["drafters"]) == set(estimates.MEASURED)
