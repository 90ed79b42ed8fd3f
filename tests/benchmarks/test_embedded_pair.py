"""Check that the quality of the embedded pair, measured by ``benchmarks/quality/embedded_pair.py``, is within its limits."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.quantize.readers import open_checkpoint
from edgedec.schemes import Int8Scheme, TernaryScheme


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("benchmarks.quality.embedded_pair")


@pytest.fixture(scope="module")
def figures(benchmark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return benchmark.measure(demo.TARGET, demo.DRAFT, None, tmp_path_factory.mktemp("pair"), demo.HELD_OUT)


@pytest.mark.thorough
@pytest.mark.parametrize(("checkpoint", "ternary"), [(demo.TARGET, True), (demo.HYBRID, True), (demo.DRAFT, False)])
def test_a_checkpoint_is_measured_as_the_bundle_that_it_is_for(
    benchmark: Any, tmp_path: Path, checkpoint: Path, ternary: bool
) -> None:
    bundle = Bundle.open(benchmark._bundle(open_checkpoint(checkpoint), tmp_path / "bundle", 2048))
    schemes = {type(tensor.scheme) for name, tensor in bundle.tensors.items() if name.endswith("down_proj.weight")}
    assert schemes == {TernaryScheme if ternary else Int8Scheme}


@pytest.mark.nightly
def test_greedy_text_seldom_loops(figures: dict[str, Any]) -> None:
    """Check this because a model that loops makes every drafter look better."""
    assert figures["prompts"] == 100
    assert figures["looping_share"] < 0.25


@pytest.mark.nightly
def test_the_draft_gains_more_than_it_costs(figures: dict[str, Any]) -> None:
    assert figures["draft_parameters"] * 8 <= figures["target_parameters"]
    for text in ("greedy texts", "held-out stories"):
        acceptance = figures["acceptance"][text]
        assert acceptance["likeliest_token_agrees"] > 0.5
        assert 0.4 < acceptance["accepted_when_sampling"] <= 1
        assert 1.5 < acceptance["tokens_per_pass_chain_of_4"] <= 5
    assert figures["target_perplexity"] < figures["draft_perplexity"]
