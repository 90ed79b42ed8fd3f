"""Test benchmarks/accelerator/host_instructions.py: what a round of the loop costs a board's processor."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from edgedec.errors import ToolError, UsageError
from edgedec.runtime import loop
from tests.runtime.loop.support.still_accelerator import Still


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("benchmarks.accelerator.host_instructions")


def test_the_loop_is_what_is_left_of_a_round(benchmark: Any) -> None:
    counts = {
        "round": {1: 100, 8: 1000},
        "submit": {1: 40, 8: 300},
        "result": {1: 10, 8: 30},
        "ngram chain": {1: 5, 8: 200},
        "ngram hardware": {1: 6, 8: 270},
        "ngram observe": {1: 2, 8: 9},
        "pass": {1: 77},
    }
    booked = benchmark._as_booked(counts)
    assert booked.keys() == {"submit", "result", "ngram observe", "loop", "hardware grow", "draft pass"}
    assert booked["loop"] == {1: 100 - 40 - 10, 8: 1000 - 300 - 30 - 200 - 9}
    assert booked["hardware grow"] == {0: 6, 1: 70 // 7}
    assert booked["draft pass"] == {1: 77}


def test_a_part_costs_its_instructions_and_what_lies_beside_them(benchmark: Any) -> None:
    counts = {
        "submit": {2: 1333},
        "result": {2: 0},
        "commit": {1: 0},
        "loop": {1: 13330},
        "rough result of 16": {2: 1333},
    }
    low, high = (benchmark.host_costs(end, counts) for end in (0, 1))
    assert low.seconds("submit", 2) == pytest.approx(0.8e-6 + 9 * 0.3e-6 + 20e-6)
    assert high.seconds("submit", 2) == pytest.approx(2.0e-6 + 9 * 0.3e-6 + 20e-6)
    assert low.seconds("result", 2) == pytest.approx(15 * 0.3e-6 + 20e-6 + 10e-6)
    rough = benchmark.host_costs(0, counts, rough=16)
    assert rough.seconds("result", 2) == pytest.approx(0.8e-6 + 15 * 0.3e-6 + 40e-6 + 10e-6)  # the norm is read, too
    with pytest.raises(UsageError, match="rough result of 32 was not counted"):
        benchmark.host_costs(0, counts, rough=32)
    assert high.seconds("commit", 1) == pytest.approx(6 * 0.3e-6)
    assert (low.seconds("loop", 1), high.seconds("loop", 1)) == (pytest.approx(8e-6), pytest.approx(20e-6))


@pytest.mark.skipif(loop.load() is None, reason="the loop's library was not built (no C++ compiler)")
def test_accesses_are_those_of_the_loop(benchmark: Any) -> None:
    still = Still()
    for rows in (1, 3):
        before = still.arguments.accesses
        assert still.submit(rows) == 0
        assert still.arguments.accesses - before == benchmark._accesses("submit", rows)
        before = still.arguments.accesses
        assert still.wait() == 0
        assert still.arguments.accesses - before == benchmark._accesses("result", rows)
    several = Still(begins_at=144, group_at=148, later_at=180)
    several.sequences[:2] = [[1, 7], [1, 7]]
    before = several.arguments.accesses
    assert several.submit(2, 1) == several.wait() == 0
    assert several.arguments.accesses - before == benchmark._accesses("texts", 2)
    before = still.arguments.accesses
    assert still.commit([0, 2]) == still.submit(1) == still.wait() == 0
    both = (benchmark._accesses(part, 1) for part in ("submit", "result"))
    assert still.arguments.accesses - before == benchmark._accesses("commit", 1) + sum(both) - 1  # both ends at once


def test_kept_counts_have_all_parts(benchmark: Any) -> None:
    counts = benchmark.read_counts()
    names = {name for name, _ in benchmark.parts()} - {"round", "pass", "ngram chain", "ngram hardware"}
    assert counts.keys() == names | {"loop", "draft pass", "hardware grow", *benchmark.PYTHON_PARTS}
    assert all(number > 0 for name, sizes in counts.items() if name != "hardware grow" for number in sizes.values())
    assert counts["submit"][1] < counts["submit"][8]
    assert counts["draft pass"][1] < counts["draft pass"][8]


@pytest.mark.nightly
@pytest.mark.thorough
def test_the_driver_runs_under_the_emulator(benchmark: Any, tmp_path: Path) -> None:
    """Count a few parts again; the compiler's version moves them."""
    try:
        program = benchmark.build_driver(tmp_path)
    except ToolError as error:
        pytest.skip(str(error))
    benchmark.write_session(tmp_path / "session", 2)
    kept = benchmark.read_counts()
    for part, size, name in (
        ("submit", 1, "submit"),
        ("texts", 8, "texts"),
        ("rough result of 16", 1, "rough result of 16"),
        ("ngram expand", 1, "ngram expand"),
        ("pass", 2, "draft pass"),
    ):
        fewer, more = (benchmark._run(program, part, size, times, tmp_path / "session") for times in (2, 4))
        assert (more - fewer) / 2 == pytest.approx(kept[name][size], rel=0.25)
