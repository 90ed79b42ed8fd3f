"""The project: RTLIL, scripts, the hand-off file, and a script that makes the bitstream wherever the tools are."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from edgedec.board import FAMILIES, RESOURCES, Board
from edgedec.boards.flows.interface import BoardDesign, Written
from edgedec.errors import UnsupportedError, UsageError
from edgedec.hw.blocks.resources import total
from edgedec.hw.compiler.program_file import MANIFEST as PROGRAM_MANIFEST
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.emit.verilog import check_yosys
from edgedec.hw.handoff.write import write_hwh
from edgedec.hw.plan.estimate import estimate
from edgedec.progress import Progress, silent, within

__all__ = [
    "CLOCK_HZ",
    "HANDOFF",
    "MOST_LUT",
    "SYNTHESIS",
    "accelerator_of",
    "adapt_board",
    "check_design",
    "command",
    "write_project",
]

CLOCK_HZ = 50e6  # assumed; far below what AMD's tools reach on this part, because nothing here proves a clock
MOST_LUT = 0.5  # share of the LUTs, assumed; the router has been tried with a quarter of them
HANDOFF = "handoff/accelerator.hwh"
_LONGEST_BURST = 16  # beats of AXI3; equals LONGEST_BURST of edgedec.hw.system.zynq.axi3, which needs amaranth
_PORT_BYTES = (4, 8)
# IDCODE of each device by the beginning of the part's name. Source: AMD UG585, register PSS_IDCODE.
_IDCODES = {"xc7z010": 0x0372_2093, "xc7z020": 0x0372_7093}
# The classic abc in place of abc9, which takes hours for the whole. No LUT is wider than the device's. There are no pins and
# no clock buffers to add. Shift registers need the version of nextpnr-xilinx that build.py asks for.
# Source: yosys, "help synth_xilinx".
SYNTHESIS = """\
read_rtlil top.il
synth_xilinx -family xc7 -flatten -nowidelut -noiopad -noclkbuf -top top -run begin:map_luts
opt_expr -mux_undef -noclkinv
abc -luts 2:2,3,6:5
clean
xilinx_srl -fixed -minlen 3
techmap -map +/xilinx/lut_map.v -map +/xilinx/cells_map.v -D LUT_WIDTH=6
xilinx_dffopt
opt_lut_ins -tech xilinx
clean
delete t:$scopeinfo
attrmap -remove src -remove module_src
attrmap -modattr -remove src
blackbox =A:whitebox
hierarchy -check -top top
tee -q -o area.json stat -json
write_json top.json
"""
_XDC = """\
# No pin of the device is used: the processing system's own are wired in silicon. build.py gives the clock to nextpnr-xilinx.
"""
_SCRIPTS = {
    "build.py": "openxc7/build_script.py",
    "bitstream.py": "openxc7/bitstream.py",
    "steps.py": "step_script.py",
}


def adapt_board(board: Board) -> Board:
    """Return the board with a conservative clock, the bandwidth of its ports at that clock, and as many LUTs as this router
    is expected to route.
    """
    share = min(MOST_LUT, board.most.get("lut", 1.0))
    assumed = "assumed for openXC7, which proves no clock"
    clock_hz = min(CLOCK_HZ, board.clock_hz)
    ports_bytes_s = board.ports * board.port_bytes * clock_hz
    sources = {**board.sources, "clock_hz": assumed, "most": "LUTs assumed for openXC7, the rest as with Vivado"}
    peak_bytes_s, measured_bytes_s = board.memory_peak_bytes_s, board.memory_measured_bytes_s
    # A faster memory would ask for wider ports than the processing system has.
    if ports_bytes_s < peak_bytes_s:
        peak_bytes_s = ports_bytes_s
        sources["memory_peak_bytes_s"] = "the ports of the processing system at this clock"
    return replace(
        board,
        clock_hz=clock_hz,
        memory_peak_bytes_s=peak_bytes_s,
        memory_measured_bytes_s=measured_bytes_s and min(measured_bytes_s, ports_bytes_s),
        most={**board.most, "lut": share},
        sources=sources,
    )


def check_design(board: Board, config: AcceleratorConfig) -> None:
    """Raises:
    UnsupportedError: the tools do not know the part, or the accelerator does not fit beside the rest.
    UsageError: the board's ports to memory cannot be so many or so wide, or have so long bursts.
    """
    _idcode(board)
    if config.ports > board.ports or config.port_bytes not in _PORT_BYTES:
        raise UsageError(
            f"{board.name} has {board.ports} ports to memory of 32, 64 bits, the configuration has {config.ports} of "
            f"{8 * config.port_bytes}; change beat_bytes or ports, which share a beat"
        )
    if config.burst_beats > _LONGEST_BURST:
        raise UsageError(
            f"{board.name} has ports of AXI3, whose bursts have at most {_LONGEST_BURST} beats, not {config.burst_beats}; "
            "lower burst_beats"
        )
    _check_together(board, config)


def _idcode(board: Board) -> int:
    for device, idcode in _IDCODES.items():
        if board.part.startswith(device):
            return idcode
    raise UnsupportedError(
        f"the flow openxc7 knows {', '.join(_IDCODES)}, and not {board.part} of {board.name}; take --flow vivado"
    )


def _check_together(board: Board, config: AcceleratorConfig) -> None:
    from edgedec.hw.system.zynq.zynq_system import ZynqSystem

    on = estimate(config).on(board)
    more = total(ZynqSystem(config, None).resources_by_part.values()).on(board).counted()
    for name in RESOURCES:
        if on[name] + more[name] > board.usable(name):
            raise UnsupportedError(
                f"the accelerator does not fit {board.name} beside the bridge to the processor, estimated: {on[name]:,} and "
                f"{more[name]:,} {name} of {board.usable(name):,} that openxc7 is expected to route; lower slots or "
                "beat_bytes, or leave the choice to --configuration board"
            )


def command(folder: Path, seed: int = 1) -> str:
    """Return the command that builds where the tools are installed; the folder may have been copied there."""
    return f"cd {shlex.quote(str(folder))} && python3 build.py{'' if seed == 1 else f' --seed {seed}'}"


def write_project(design: BoardDesign, folder: Path, *, progress: Progress = silent) -> Written:
    """Deterministic. Needs ``folder``/program, whose hash is in the key that a run's results have to bear.

    Raises:
        ToolError: amaranth or yosys is missing.
    """
    tools = check_yosys()
    for name in ("rtl", "synthesis", "constraints", "handoff"):
        (folder / name).mkdir()
    rtlil_hash = _write_hardware(design, folder, within(progress, 0, 98))
    progress("project", 98, 100)
    (folder / "synthesis/top.ys").write_text(SYNTHESIS, "utf-8")
    (folder / "constraints/board.xdc").write_text(_XDC, "utf-8")
    sources = files("edgedec.boards.flows")
    for target, source in _SCRIPTS.items():
        (folder / target).write_text(sources.joinpath(source).read_text("utf-8"), "utf-8")
    board, config = design.board, design.config
    write_hwh(config, folder / HANDOFF, family=board.family, part=board.part, rtlil_hash=rtlil_hash, whole=True)
    settings = {
        "key": _key(folder),
        "name": board.name,
        "configuration": f"{config.hash:016x}",
        "part": board.part,
        "idcode": _idcode(board),
        "clock_hz": config.clock_hz,
    }
    (folder / "settings.json").write_text(json.dumps(settings, indent=1) + "\n", "utf-8")
    (folder / "README.md").write_text(_readme(design), "utf-8")
    progress("project", 100, 100)
    return Written(tools=tools, rtlil_hash=rtlil_hash)


def accelerator_of(config: AcceleratorConfig) -> Any:
    """Return the accelerator; tests replace it by something smaller."""
    from edgedec.hw.accelerator import Accelerator

    return Accelerator(config)


def _write_hardware(design: BoardDesign, folder: Path, progress: Progress) -> int:
    """Write the top with everything in it as RTLIL, and return its hash."""
    from edgedec.boards.flows.openxc7.top import ZynqTop
    from edgedec.hw.emit.rtlil import to_rtlil
    from edgedec.hw.emit.stamping import read_stamp

    top = ZynqTop(design.config, accelerator_of(design.config))
    text = to_rtlil(top, name="top", platform=FAMILIES[design.board.family], progress=progress)
    (folder / "rtl/top.il").write_text(text, "utf-8")
    return read_stamp(text)


def _key(folder: Path) -> str:
    """Return a hash of all that the bitstream is made from, and of its program."""
    digest = hashlib.sha256()
    names = ("rtl/top.il", "constraints/board.xdc", "synthesis/top.ys", *_SCRIPTS, HANDOFF)
    for name in (*names, f"program/{PROGRAM_MANIFEST}"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def _readme(design: BoardDesign) -> str:
    board, config = design.board, design.config
    return f"""\
# An edgedec accelerator for {board.title}, by open tools

**Experimental.** The timing of the result is not proven: nextpnr-xilinx does not analyse the paths of block RAM
and of the processing system. Nobody has run it on a board.

    python3 build.py --chipdb PATH --database FOLDER

It takes yosys (from YoWASP's Python package, or the PATH) and, from the PATH, nextpnr-xilinx, fasm2frames and
xc7frames2bit, with nextpnr-xilinx's database of the device (EDGEDEC_CHIPDB) and prjxray's (EDGEDEC_PRJXRAY_DB). openXC7
(https://github.com/openXC7/toolchain-nix) has all of them. The folder may be copied to another machine. A run that was
interrupted goes on with the step that was not finished. `--seed N` places otherwise; the same seed gives the same bytes.
Afterwards the same `edgedec build-bitstream` as before reads the results, completes the report and writes the board bundle.

| | |
|---|---|
| rtl/top.il | processing system, bridge and accelerator as RTLIL; configuration {config.hash:016x} |
| synthesis/top.ys | the script of yosys |
| constraints/board.xdc | nearly empty: no pin is used |
| handoff/accelerator.hwh | the hand-off file for PYNQ. edgedec is its author: there is no Vivado in this flow |
| build.py, steps.py, bitstream.py, settings.json | the entry, and what it is for |
| program/ | the compiled model |
| netlist/ | of a run: the netlist in cells of the device, and their number |
| *.bit | of a run: the bitstream; one whose name says timing-not-met must not be used at this clock |
| results/ | of a run: what made the bitstream, and the clocks of the paths that were analysed |
| work/ | of a run: logs and files between the steps |
| report.html, report.json | what this is, with figures; each says where it is from |
| build.json | which build this is, with the hash of every file |
"""
