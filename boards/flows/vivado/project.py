"""The project: all that Vivado needs, as files with relative names. The Tcl is in tcl/; settings.tcl says for what."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from edgedec.board import FAMILIES as DEVICE_FAMILIES
from edgedec.board import Board
from edgedec.boards.flows.interface import BoardDesign, Written
from edgedec.boards.flows.vivado.tool import MINIMUM
from edgedec.boards.flows.vivado.wrapper import CORE, wrapper_verilog
from edgedec.errors import UsageError
from edgedec.hw.compiler.program_file import MANIFEST as PROGRAM_MANIFEST
from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.emit.verilog import accelerator_verilog, check_yosys
from edgedec.hw.handoff.write import CONTROLLER, CONTROLLER_BYTES, FAMILIES, write_hwh
from edgedec.hw.isa.ip_core import INSTANCE, REGISTER_BYTES, VLNV
from edgedec.progress import Progress, silent, within

__all__ = ["check_design", "command", "settings", "write_project"]

_TCL = {"build.tcl": "build.tcl", "block_design.tcl": "block_design.tcl", "package.tcl": "ip/package.tcl"}
_SYSTEMS = {"zynq-ultrascale+": "zynq_ultrascale_plus.tcl", "zynq-7000": "zynq_7000.tcl"}
# Names of Vivado's board files, if installed: they set up memory and pins of the processing system.
_BOARD_PARTS = {
    "kv260": "xilinx.com:kv260_som:part0:*",
    "ultra96-v2": "avnet.com:ultra96v2:part0:*",
    "pynq-z2": "tul.com.tw:pynq-z2:part0:*",
    "arty-z7-20": "digilentinc.com:arty-z7-20:part0:*",
}
_JOBS = 4
# Attempts until timing is met: share of the wanted clock, strategy of synthesis, strategy of implementation. The lower
# clocks are those that a divider of the processing system makes in place of 250 MHz. Source: AMD UG901 and UG904.
_ATTEMPTS = (
    (1, "Vivado Synthesis Defaults", "Vivado Implementation Defaults"),
    (1, "Flow_PerfOptimized_high", "Performance_ExplorePostRoutePhysOpt"),
    (1, "Flow_PerfOptimized_high", "Performance_ExtraTimingOpt"),
    (1, "Flow_AlternateRoutability", "Congestion_SpreadLogic_high"),
    (6 / 7, "Flow_PerfOptimized_high", "Performance_ExplorePostRoutePhysOpt"),
    (3 / 4, "Flow_PerfOptimized_high", "Performance_ExplorePostRoutePhysOpt"),
)
_XDC = """\
# The fabric's clock is constrained by the processing system that makes it, and no pin of the device is used: the accelerator
# is reached over AXI. What is left is to keep the bitstream small, for it is loaded from a running system.
set_property BITSTREAM.GENERAL.COMPRESS TRUE [current_design]
"""


def check_design(board: Board, config: AcceleratorConfig) -> None:
    """Raises:
    UsageError: the board's ports to memory cannot be so many or so wide.
    """
    bits, widths = 8 * config.port_bytes, FAMILIES[board.family].widths
    if config.ports > board.ports or bits not in widths:
        raise UsageError(
            f"{board.name} has {board.ports} ports to memory of {', '.join(map(str, widths))} bits, the configuration has "
            f"{config.ports} of {bits}; change beat_bytes or ports, which share a beat"
        )


def command(folder: Path, seed: int = 1) -> str:
    """Return the command that runs where Vivado is installed; the folder may have been copied there."""
    return f"cd {shlex.quote(str(folder))} && vivado -mode batch -source build.tcl -log vivado.log -nojournal"


def settings(design: BoardDesign, key: str) -> Mapping[str, str]:
    """Return the settings of the Tcl. ``key`` identifies the build; a resumed run must have the same."""
    board, config = design.board, design.config
    system = FAMILIES[board.family]
    vendor, library, name, version = VLNV.split(":")
    return {
        "key": key,
        "configuration": f"{config.hash:016x}",
        "minimum_vivado": MINIMUM,
        "part": board.part,
        "board_part": _BOARD_PARTS.get(board.name, ""),
        "project": "edgedec",
        "design": "accelerator_system",
        "vlnv": VLNV,
        "vendor": vendor,
        "library": library,
        "name": name,
        "version": version,
        "instance": INSTANCE,
        "system": system.name,
        "controller": CONTROLLER,
        "ports": str(config.ports),
        "port_bits": str(8 * config.port_bytes),
        "attempts": " ".join(
            f"{{{share * config.clock_hz / 1e6:g} {{{synthesis}}} {{{implementation}}}}}"
            for share, synthesis, implementation in _ATTEMPTS
        ),
        "registers_address": f"{system.accelerator_address:#010x}",
        "registers_bytes": str(REGISTER_BYTES),
        "controller_address": f"{system.controller_address:#010x}",
        "controller_bytes": str(CONTROLLER_BYTES),
        "memory_range": str(1 << ADDRESS_BITS),
        "jobs": str(_JOBS),
    }


def write_project(design: BoardDesign, folder: Path, *, progress: Progress = silent) -> Written:
    """Deterministic. Needs ``folder``/program, whose hash binds what a run is resumed with.

    Raises:
        ToolError: amaranth or yosys is missing.
    """
    tools = check_yosys()
    for name in ("rtl", "ip", "constraints", "simulated"):
        (folder / name).mkdir()
    verilog, rtlil_hash = accelerator_verilog(
        design.config, name=CORE, platform=DEVICE_FAMILIES[design.board.family], progress=within(progress, 0, 98)
    )
    (folder / "rtl/accelerator_core.v").write_text(verilog, "utf-8")
    progress("project", 98, 100)
    (folder / "rtl/accelerator.v").write_text(wrapper_verilog(design.config, rtlil_hash), "utf-8")
    (folder / "constraints/board.xdc").write_text(_XDC, "utf-8")
    sources = files("edgedec.boards.flows.vivado").joinpath("tcl")
    for source, target in {**_TCL, _SYSTEMS[design.board.family]: "processing_system.tcl"}.items():
        (folder / target).write_text(sources.joinpath(source).read_text("utf-8"), "utf-8")
    (folder / "settings.tcl").write_text(settings_tcl(settings(design, _key(folder))), "utf-8")
    write_hwh(
        design.config,
        folder / "simulated/accelerator.hwh",
        family=design.board.family,
        part=design.board.part,
        rtlil_hash=rtlil_hash,
    )
    (folder / "README.md").write_text(_readme(design, folder), "utf-8")
    progress("project", 100, 100)
    return Written(tools=tools, rtlil_hash=rtlil_hash)


def settings_tcl(values: Mapping[str, str]) -> str:
    lines = ["# Written by edgedec: what this project is for.", "array set settings {"]
    lines += [f"    {name} {quoted(value)}" for name, value in values.items()]
    return "\n".join([*lines, "}", ""])


def quoted(text: str) -> str:
    """An element of a Tcl list, whatever is in it.

    Raises:
        UsageError: a line break or another control character.
    """
    if not text.isprintable():
        raise UsageError(f"{text!r} cannot be written into a Tcl script; use printable characters")
    special = set('{}[]$"\\;# \t')
    return "".join(f"\\{letter}" if letter in special else letter for letter in text) or "{}"


def _key(folder: Path) -> str:
    """Return a hash of all that a synthesis is made from."""
    digest = hashlib.sha256()
    for name in ("rtl/accelerator_core.v", "rtl/accelerator.v", "block_design.tcl", "processing_system.tcl"):
        digest.update((folder / name).read_bytes())
    digest.update((folder / "program" / PROGRAM_MANIFEST).read_bytes())
    return digest.hexdigest()


def _readme(design: BoardDesign, folder: Path) -> str:
    board, config = design.board, design.config
    return f"""\
# An edgedec accelerator for {board.title}

A Vivado project for the {board.part}, complete and non-interactive. **It was not run in Vivado** by whoever wrote it, unless
results/ is there: see report.html. Its Tcl was run in a Tcl interpreter against stubs, by edgedec's tests.

    vivado -mode batch -source build.tcl -log vivado.log -nojournal

Vivado {MINIMUM} or newer; no IP is pinned to a version, the newest one of the catalogue is taken. The folder may be copied
to another machine. It tries the clocks and strategies of settings.tcl in their order until timing is met; an interrupted run
goes on with the attempt in which it was. Afterwards the same
`edgedec build-bitstream` as before reads results/, completes the report and writes the board bundle.

| | |
|---|---|
| rtl/accelerator.v | top of the IP block: the ports by their bus names |
| rtl/accelerator_core.v | the accelerator, generated; configuration {config.hash:016x} |
| ip/package.tcl | makes the IP block (IP-XACT) of them |
| block_design.tcl, processing_system.tcl | the block design; what differs between the families |
| build.tcl, settings.tcl | the entry, and what the project is for |
| constraints/board.xdc | constraints |
| program/ | the compiled model |
| simulated/accelerator.hwh | a hand-off file by edgedec, not by Vivado: for the simulated board, never for a real one |
| report.html, report.json | what this is, with figures; each says where it is from |
| build.json | which build this is, with the hash of every file |
| work/ | Vivado's own files, of a run |
| results/ | bitstream, hand-off file, hardware platform and reports, of a finished run; never use a timing-not-met.bit |
"""
