"""Test the hash by which a bitstream says its RTL: one value for one text, in the register and nowhere else."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, Out
from amaranth.sim import Simulator

from edgedec.hw.blocks.stamp import stamp
from edgedec.hw.emit.rtlil import to_rtlil
from edgedec.hw.emit.stamping import read_stamp, stamped
from edgedec.hw.emit.verilog import run_yosys

PRINTED = """
from tests.hw.emit.test_stamping import Stamped
from edgedec.hw.emit.rtlil import to_rtlil
print(to_rtlil(Stamped()), end="")
"""


class Inner(Component):
    """Hold the stamp, as the accelerator does below a board's top."""

    def __init__(self, delay: int = 1) -> None:
        self._delay = delay
        super().__init__({"value": Out(64)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        value = stamp(m)
        for _ in range(self._delay):
            value, before = type(self.value)(64), value
            m.d.sync += value.eq(before)
        m.d.comb += self.value.eq(value)
        return m


class Stamped(Component):
    def __init__(self, delay: int = 1) -> None:
        self._inner = Inner(delay)
        super().__init__({"value": Out(64), "other": In(64)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.inner = self._inner
        m.d.comb += self.value.eq(self._inner.value | self.other)
        return m


class Plain(Component):
    def __init__(self) -> None:
        super().__init__({"a": In(64), "b": Out(64)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.d.sync += self.b.eq(self.a)
        return m


def test_the_hash_is_that_of_the_text_with_zeros_in_its_place() -> None:
    text = to_rtlil(Stamped())
    found = read_stamp(text)
    assert found
    assert f"  attribute \\init 64'{found:064b}\n" in text
    zeroed = text.replace(f"{found:064b}", "0" * 64)
    assert zeroed != text
    assert hashlib.sha256(zeroed.encode()).digest()[:8] == found.to_bytes(8, "little")
    assert stamped(text) == stamped(zeroed) == text


def test_the_hash_of_hardware_in_a_simulator_is_zero() -> None:
    """Look at the register before anyone has written its text: zero says that there is no hash."""
    component, values = Stamped(), list[int]()

    async def watch(ctx: Any) -> None:
        for _ in range(4):
            await ctx.tick()
            values.append(ctx.get(component.value))

    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(watch)
    simulator.run()
    assert values == [0] * 4


def test_another_process_writes_the_same_and_other_hardware_another_one(project_root: Path) -> None:
    found = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", PRINTED],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
            cwd=project_root,
        )
        found.append(read_stamp(run.stdout))
    assert found == [read_stamp(to_rtlil(Stamped()))] * 2
    assert read_stamp(to_rtlil(Stamped(delay=2))) not in (0, found[0])


def test_a_design_without_a_place_has_none() -> None:
    text = to_rtlil(Plain())
    assert read_stamp(text) == 0
    assert stamped(text) == text


@pytest.mark.rtl
def test_synthesis_makes_a_constant_of_it(tmp_path: Path) -> None:
    """Look for the hash in the optimized netlist: the register is gone, and its value is what it drives."""
    text = to_rtlil(Stamped(delay=0))
    (tmp_path / "design.il").write_text(text, "utf-8")
    run_yosys("read_rtlil design.il\nflatten\nproc\nopt -full\nwrite_rtlil out.il\n", tmp_path)
    out = (tmp_path / "out.il").read_text("utf-8")
    assert not re.search(r"cell \$\w*dff", out)
    assert f"64'{read_stamp(text):064b}" in out
