"""Test the figures of trees: the tokens of a round, and the ratios to a chain."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from edgedec.errors import DeviceError
from edgedec.runtime.rounds.adaptive import Adaptive

trees = importlib.import_module("benchmarks.speculation.trees")


def text(rounds: int, seconds: float, tokens: int = 11) -> Any:
    return trees.TreeText(tokens=tuple(range(tokens)), rounds=rounds, seconds=seconds, cpu_seconds=2 * seconds)


def test_tokens_of_a_round_are_pooled_and_speeds_are_medians() -> None:
    figures = trees.size_figures({"chain": [text(5, 1.0), text(6, 2.0), text(11, 5.0)], "dynamic": [text(1, 0.5)]})
    assert figures == {
        "chain": {"tokens_per_round": 33 / 22, "tokens_per_second": 5.0, "cpu_ms": 4000.0},
        "dynamic": {"tokens_per_round": 11.0, "tokens_per_second": 20.0, "cpu_ms": 1000.0},
    }


def test_a_ratio_is_that_of_the_median_turns_of_all_prompts() -> None:
    first = [{"chain": text(5, chain), "dynamic": text(4, own)} for chain, own in ((2.0, 1.0), (3.0, 2.0), (9.0, 30.0))]
    second = [{"chain": text(5, 1.0), "dynamic": text(4, 3.0)}]
    figures = trees.kind_figures([first, second], ["chain", "dynamic"])
    assert figures["prompts"] == 2
    assert figures["policies"]["chain"] == {
        "tokens_per_round": 11 / 5,
        "tokens_per_second": 20 / 4,
        "ratio": 1.0,
        "cpu_ratio": 1.0,
    }
    assert figures["policies"]["dynamic"]["ratio"] == figures["policies"]["dynamic"]["cpu_ratio"] == 4 / 5
    assert figures["policies"]["dynamic"]["tokens_per_second"] == 20 / 5


def test_texts_that_differ_are_an_error() -> None:
    trees.check_equal("a story", {"chain": text(5, 1.0), "dynamic": text(4, 2.0)})
    with pytest.raises(DeviceError, match="a story: the trees chain and dynamic wrote different texts"):
        trees.check_equal("a story", {"chain": text(5, 1.0), "static": text(5, 1.0), "dynamic": text(4, 2.0, 12)})


@pytest.mark.thorough
def test_every_policy_writes_the_same_texts_in_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "SIZES", (8,))
    before = Adaptive.size
    texts = trees.by_size(["Once upon a time"], tokens=16, threads=1, bar=lambda *_: None)
    assert list(texts) == [(0.0, 8), (0.8, 8)]
    for one in texts.values():
        assert {"chain", "dynamic"} < set(one)
        assert all(len(own[0].tokens) == 16 for own in one.values())
        assert one["dynamic"][0].rounds < 16
    assert Adaptive.size is before
