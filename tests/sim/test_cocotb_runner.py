from __future__ import annotations

import shutil
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, Out

from edgedec.errors import EdgedecError, ToolError
from edgedec.hw.fifo import Fifo
from edgedec.sim import cocotb_runner
from edgedec.sim.cocotb_runner import missing_tools, run_bench


class Wire(Component):  # type: ignore[misc]  # Amaranth has no types
    def __init__(self) -> None:
        super().__init__({"a": In(1), "b": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.d.sync += self.b.eq(self.a)
        return m


def test_missing_programs_and_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: None if name == "g++" else f"/bin/{name}")
    monkeypatch.setattr(cocotb_runner, "_installed", lambda name: name != "cocotbext.axi")
    assert missing_tools() == ["cocotbext-axi (pip)", "g++ (system)"]
    with pytest.raises(ToolError, match=r"needs cocotbext-axi \(pip\), g\+\+ \(system\); install edgedec\[hdl\]"):
        run_bench(Fifo(shape=8, depth=4), "no.such.bench")


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")
def test_failures_are_not_swallowed() -> None:
    """A bench that does not fit the design, and one that is not there."""
    with pytest.raises(EdgedecError, match=r"(?s)edgedec.sim.benches.registers: \d+ of \d+ tests failed"):
        run_bench(Wire(), "edgedec.sim.benches.registers")
    with pytest.raises(EdgedecError, match=r"no\.such\.bench"):
        run_bench(Wire(), "no.such.bench")
