"""Test the parts of benchmarks/memory/above_memory.py that measure nothing: its figures and goals."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("benchmarks.memory.above_memory")


def text(benchmark: Any, seconds: float, nodes: tuple[int, ...], accepted: int = 0) -> Any:
    return benchmark.TextRun(
        tokens=tuple(range(len(nodes) + accepted)),
        seconds=seconds,
        nodes=nodes,
        accepted=accepted,
        pass_seconds=seconds,
        draft_seconds=0.0,
        read_seconds=0.0,
    )


def pair(benchmark: Any, kind: str, plain: float, guessed: float) -> Any:
    one = text(benchmark, plain, (1,) * 8)
    return benchmark.GuessedText(kind=kind, plain=(one, one), guessed=text(benchmark, guessed, (9, 5), accepted=6))


def test_ratios_are_of_times_and_not_means_of_ratios(benchmark: Any) -> None:
    pairs = [pair(benchmark, "copying", 8.0, 2.0), pair(benchmark, "story", 2.0, 2.0)]
    figures = benchmark.summarize(pairs)
    assert figures["kinds"].keys() == {"copying", "story"}
    assert figures["ratio"] == pytest.approx(10 / 4)
    copying = figures["kinds"]["copying"]
    assert (copying["ratio"], copying["plain_tok_s"], copying["tok_s"]) == (4.0, 1.0, 4.0)
    assert (copying["acceptance"], copying["tokens_per_round"], copying["mean_nodes"]) == (0.5, 4.0, 7.0)


def test_goals_are_compared_with_the_figures(benchmark: Any) -> None:
    figures = benchmark.summarize([pair(benchmark, "copying", 8.0, 4.0)])
    assert benchmark.goals(figures) == [("copying", 2.0, 2.9), ("all kinds", 2.0, 1.8)]
    assert [name for name, _, _ in benchmark.goals(benchmark.summarize([pair(benchmark, "story", 8.0, 4.0)]))] == [
        "all kinds"
    ]
