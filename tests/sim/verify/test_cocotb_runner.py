from __future__ import annotations

import queue
import shutil
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, Out

from edgedec.errors import EdgedecError, ToolError
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.fifo import Fifo
from edgedec.sim.verify import cocotb_runner
from edgedec.sim.verify.cocotb_runner import missing_tools, run_bench


class Wire(Component):  # type: ignore[misc]  # Amaranth has no types
    def __init__(self) -> None:
        super().__init__({"a": In(1), "b": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.d.sync += self.b.eq(self.a)
        return m


BENCH = """
import os
import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

@cocotb.test()
async def waits(dut):
    cocotb.start_soon(Clock(dut.clk, 4, "ns").start())
    dut.rst.value = 1
    await RisingEdge(dut.clk)
    dut.rst.value = 0
    for _ in range(int(os.environ["CYCLES"])):
        await RisingEdge(dut.clk)
"""


def test_missing_programs_and_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: None if name == "g++" else f"/bin/{name}")
    monkeypatch.setattr(cocotb_runner, "_installed", lambda name: name != "cocotbext.axi")
    assert missing_tools() == ["cocotbext-axi (pip)", "g++ (system)"]
    with pytest.raises(ToolError, match=r"needs cocotbext-axi \(pip\), g\+\+ \(system\); run: .*\[hdl\]"):
        run_bench(Fifo(shape=8, depth=4), "no.such.bench")


def test_a_cache_folder_in_which_make_cannot_build_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "with space"))
    with pytest.raises(ToolError, match=r"make cannot build in .*with space.*: set XDG_CACHE_HOME"):
        cocotb_runner._built("", lambda: None)


_LOG = """\
   0.00ns INFO     cocotb.regression                  running edgedec.sim.verify.benches.top.good (1/5)
   1.00ns INFO     cocotb.regression                  edgedec.sim.verify.benches.top.good passed
   1.00ns INFO     cocotb.regression                  running edgedec.sim.verify.benches.top.bad/side=r (2/5)
   2.00ns WARNING  cocotb.regression                  edgedec.sim.verify.benches.top.bad/side=r failed
                                                      Traceback (most recent call last):
                                                        File "top.py", line 1
                                                      AssertionError: the cache
   2.00ns INFO     cocotb.top                         something else
"""


def test_only_the_failures_of_a_log_are_reported(tmp_path: Path) -> None:
    log = tmp_path / "bench.log"
    log.write_text(_LOG, "utf-8")
    assert cocotb_runner._failures(log).splitlines() == [
        "2.00ns WARNING  cocotb.regression                  edgedec.sim.verify.benches.top.bad/side=r failed",
        "Traceback (most recent call last):",
        '  File "top.py", line 1',
        "AssertionError: the cache",
    ]
    failed = "   3.00ns WARNING  cocotb.regression                  {} failed\n"
    log.write_text(_LOG + "".join(failed.format(name) for name in "abcd"), "utf-8")
    assert cocotb_runner._failures(log).splitlines()[-2:] == ["also failed: c", "also failed: d"]
    log.write_text("no\nverilog\n", "utf-8")
    assert cocotb_runner._failures(log) == "no\nverilog"
    assert cocotb_runner._failures(tmp_path / "none") == ""


@pytest.mark.thorough
def test_a_growing_log_is_followed(tmp_path: Path) -> None:
    log, reports = tmp_path / "bench.log", queue.Queue[tuple[str, int, int]]()
    with cocotb_runner._followed(log, "top", lambda *report: reports.put(report)):
        log.write_text(_LOG, "utf-8")
        assert reports.get(timeout=60) == ("top: tests", 1, 5)


@pytest.mark.nightly
@pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")
def test_failures_are_not_swallowed() -> None:
    """Run a bench that does not fit the design, and one that does not exist."""
    with pytest.raises(EdgedecError, match=r"(?s)edgedec.sim.verify.benches.registers: \d+ of \d+ tests failed"):
        run_bench(Wire(), "edgedec.sim.verify.benches.registers")
    with pytest.raises(EdgedecError, match=r"no\.such\.bench"):
        run_bench(Wire(), "no.such.bench")


class Promising(Component):  # type: ignore[misc]
    """State a rule that the hundredth cycle breaks."""

    def __init__(self) -> None:
        super().__init__({"count": Out(8)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.d.sync += self.count.eq(self.count + 1)
        contract(m, self.count != 99, "The count stays below 99")
        return m


@pytest.mark.nightly
@pytest.mark.rtl
@pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")
def test_a_broken_rule_of_the_design_fails_a_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waiting_bench.py").write_text(BENCH, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    run_bench(Promising(), "waiting_bench", parameters={"cycles": 90})
    with pytest.raises(EdgedecError, match="top breaks the rule: The count stays below 99"):
        run_bench(Promising(), "waiting_bench", parameters={"cycles": 200})
