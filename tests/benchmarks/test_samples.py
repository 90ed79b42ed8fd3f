"""Test the figures of a learning drafter by sample, and the figures of text that the target writes."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.rounds.adaptive import Adaptive

samples, own_text, prompts = (
    importlib.import_module(f"benchmarks.{name}")
    for name in ("speculation.samples", "speculation.own_text", "support.prompts")
)


def test_gains_are_those_of_the_last_sample() -> None:
    runs = [
        {"tokens": [10, 12], "rounds": [10, 6], "repeated": 0.0},
        {"tokens": [30, 30], "rounds": [15, 10], "repeated": 0.5},
    ]
    figures = samples.summarize(runs)
    assert figures["tokens_per_round"] == [1.5, 2.5]
    assert figures["gain"] == pytest.approx(2.5 / 1.5)
    assert figures["tokens_per_round_pooled"] == [40 / 25, 42 / 16]
    assert figures["gain_pooled"] == pytest.approx(42 / 16 / (40 / 25))
    assert figures["looping"] == 1


@pytest.mark.thorough
def test_a_repeated_text_is_learned_and_the_switch_is_put_back() -> None:
    """Check at temperature 0, where every sample is the same text."""
    story, spec, before = prompts.read_prompts(None, 1)[0], SpecConfig(drafter="stand", draft_max=4), Adaptive.size
    run = samples.measure(story, spec, samples=2, tokens=24, temperature=0.0)
    assert run["tokens"] == [24, 24]
    assert run["rounds"][1] <= 6 < run["rounds"][0]
    assert Adaptive.size is before


@pytest.mark.thorough
def test_the_target_writes_what_is_then_read() -> None:
    first, second = own_text.written(2, 6, 0.8)
    assert [len(ids) - start for start, ids in (first, second)] == [6, 6]
    again = next(own_text.written(1, 6, 0.8))
    np.testing.assert_array_equal(first[1], again[1])
    figures = own_text.measure(2, 6, 0.8, 1, 8)
    assert figures["positions"] == 12
    assert all(0 <= share <= 1 for rule, share in figures.items() if rule != "positions")
