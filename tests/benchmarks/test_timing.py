"""Test the table of timing: what may be kept, that it is complete, and that its figures come out again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from benchmarks.accelerator import timing_table as table
from benchmarks.support.docs_tables import outdated_blocks
from edgedec.board import FAMILIES
from edgedec.errors import UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.plan.estimate import estimate
from edgedec.sim.synthesis import timing
from edgedec.sim.synthesis.estimate_parts import Parts

GOOD: dict[str, Any] = {
    "hash": "a",
    "levels": 4.0,
    "endpoints_above": 0,
    "register_loads": 300,
    "net_loads": 500,
    "sta_ns": 2.5,
    "path": "a to b",
}


def test_a_row_may_improve() -> None:
    better = {**GOOD, "hash": "b", "levels": 3.5}
    assert table.check("part", GOOD, better) == better
    assert table.check("part", None, GOOD) == GOOD


@pytest.mark.parametrize(
    ("name", "figure"), [("levels", 4.1), ("register_loads", 301), ("net_loads", 501), ("sta_ns", 2.6)]
)
def test_a_figure_that_became_worse_needs_a_reason(name: str, figure: float) -> None:
    now = {**GOOD, name: figure}
    with pytest.raises(
        UsageError, match=rf"part became worse: {name} .*; the table may only improve: mend it, or give the"
    ):
        table.check("part", GOOD, now)
    assert table.check("part", GOOD, now, accept="a new operation")["accepted"] == "a new operation"


@pytest.mark.parametrize(("name", "figure"), [("levels", 5.1), ("register_loads", 2001), ("net_loads", 2001)])
def test_no_reason_takes_a_figure_beyond_its_gate(name: str, figure: float) -> None:
    with pytest.raises(UsageError, match=r"may only improve: mend it$"):
        table.check("part", GOOD, {**GOOD, name: figure}, accept="it must be")


def test_a_known_excess_may_only_go_down() -> None:
    excess = {**GOOD, "levels": 7.0, "endpoints_above": 20}
    assert table.check("part", excess, {**excess, "levels": 6.0})["levels"] == 6.0
    with pytest.raises(UsageError, match=r"levels 7\.0 -> 7\.1"):
        table.check("part", excess, {**excess, "levels": 7.1}, accept="it must be")


def test_excesses_name_the_figures_beyond_a_gate() -> None:
    """A level that is rounded to the gate hides no endpoint above it."""
    rows = {"a": GOOD, "b": {**GOOD, "levels": 5.1, "register_loads": 2500}, "c": {**GOOD, "levels": 5.0}}
    rows["d"] = rows["c"] | {"endpoints_above": 3}
    assert table.excesses(rows) == {
        "b": ["levels 5.1 above 5", "register_loads 2500 above 2000"],
        "d": ["endpoints_above 3 above 0"],
    }


def test_the_page_has_the_figures_of_the_table() -> None:
    assert outdated_blocks(table.tables()) == [], "run python -m benchmarks.accelerator.timing --write-docs"


def test_each_part_has_a_row() -> None:
    assert list(table.load()["levels"]) == list(estimate(AcceleratorConfig()).parts), (
        "run python -m benchmarks.accelerator.timing --write-docs"
    )


@pytest.mark.thorough
def test_each_part_that_an_option_makes_has_a_row() -> None:
    made = [f"{case} {path}" for case, config in table.cases().items() for path in table.option_parts(config)]
    assert list(table.load()["options"]) == made, "run python -m benchmarks.accelerator.timing --write-docs"
    assert {
        "bonsai-1.7b datapath.attention.norm",
        "bonsai-1.7b datapath.attention.splitter",
        "gemma-2-2b datapath.attention.heads",
        "gemma-2-2b datapath.residual",
        "windows cache",
        "windows datapath.attention.heads",
        "rough-head datapath.quantize.taps",
    } <= set(made)


def test_no_part_exceeds_a_gate() -> None:
    assert table.excesses({**table.load()["levels"], **table.load()["options"]}) == {}


@pytest.mark.nightly
@pytest.mark.rtl
def test_no_figure_of_a_part_that_changed_is_worse() -> None:
    parts, kept = table.parts(), table.load()["levels"]
    changed = [path for path in parts.paths if table.part_hash(path, parts) != kept[path]["hash"]]
    assert {
        path: found for path in changed if (found := table.worse(kept[path], table.measured_row(path, parts)))
    } == {}


@pytest.mark.nightly
@pytest.mark.rtl
@pytest.mark.parametrize("case", ["bonsai-1.7b", "gemma-2-2b", "windows", "rough-head"])
def test_no_figure_of_an_options_part_that_changed_is_worse(case: str) -> None:
    config, kept = table.cases()[case], table.load()["options"]
    parts = Parts(config, FAMILIES["zynq-7000"])
    rows = {path: kept[f"{case} {path}"] for path in table.option_parts(config)}
    changed = [path for path, row in rows.items() if table.part_hash(path, parts) != row["hash"]]
    assert {
        path: found for path in changed if (found := table.worse(rows[path], table.measured_row(path, parts)))
    } == {}


@pytest.mark.nightly
@pytest.mark.parametrize("path", estimate(AcceleratorConfig()).parts)
def test_every_figure_comes_out_again(path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(timing, "cache_folder", lambda: tmp_path)  # nothing that an earlier run kept
    parts, row = table.parts(), table.load()["levels"][path]
    again = table.measured_row(path, parts)
    assert again["hash"] == row["hash"], "run python -m benchmarks.accelerator.timing --write-docs"
    assert {name: again[name] for name in table.RANKED} == {name: row[name] for name in table.RANKED}
