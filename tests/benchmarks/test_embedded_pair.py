"""The quality of the embedded pair, as ``benchmarks/embedded_pair.py`` measures it, is within its limits."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from edgedec import demo

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "embedded_pair.py"


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Any:
    spec = importlib.util.spec_from_file_location("embedded_pair", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.measure(demo.TARGET, demo.DRAFT, None, tmp_path_factory.mktemp("pair"), demo.HELD_OUT)


@pytest.mark.slow
def test_greedy_text_seldom_loops(figures: dict[str, Any]) -> None:
    """A model that loops flatters every drafter."""
    assert figures["prompts"] == 100
    assert figures["looping_share"] < 0.25


@pytest.mark.slow
def test_the_draft_is_worth_its_weights(figures: dict[str, Any]) -> None:
    assert figures["draft_parameters"] * 8 <= figures["target_parameters"]
    for text in ("greedy texts", "held-out stories"):
        accepted = figures["acceptance"][text]
        assert accepted["likeliest_token_agrees"] > 0.5
        assert 0.4 < accepted["accepted_when_sampling"] <= 1
        assert 1.5 < accepted["tokens_per_pass_chain_of_4"] <= 5
    assert figures["target_perplexity"] < figures["draft_perplexity"]
