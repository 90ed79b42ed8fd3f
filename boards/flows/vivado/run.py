"""A run of Vivado, and what it leaves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from edgedec.boards.flows.interface import BoardDesign, Built
from edgedec.boards.flows.steps import build_by_steps
from edgedec.boards.flows.vivado.project import command
from edgedec.boards.flows.vivado.reports import read_power, read_timing, read_utilization
from edgedec.boards.flows.vivado.tool import find_tools, find_vivado
from edgedec.errors import BundleError
from edgedec.progress import Progress, silent

__all__ = ["read_results", "run_project"]

_RESULTS, _LOG = "results", "vivado.log"


def run_project(design: BoardDesign, folder: Path, *, progress: Progress = silent) -> Built:
    """Raises:
    ToolError: Vivado is missing or too old.
    EdgedecError: it failed; names the step, what it said, and the log.
    """
    find_tools()
    words = [str(find_vivado()), "-mode", "batch", "-source", "build.tcl", "-log", _LOG, "-nojournal", "-notrace"]
    return build_by_steps(
        words,
        folder,
        partial(read_results, design, folder),
        who="Vivado",
        log=_LOG,
        again=f": {command(folder)}",
        progress=progress,
    )


def read_results(design: BoardDesign, folder: Path) -> Built | None:
    """Raises:
    BundleError: they are of another project, or damaged.
    """
    results = folder / _RESULTS
    if not results.is_dir():
        return None
    facts = _facts(results / "facts.txt")
    settings = (folder / "settings.tcl").read_text("utf-8")
    if f"    key {facts['key']}\n" not in settings:
        raise BundleError(
            f"{results} is of another build than this project; remove work/ and results/ and run the build again"
        )
    for name in ("accelerator.bit", "accelerator.hwh"):
        if not (results / name).is_file() or not (results / name).stat().st_size:
            raise BundleError(
                f"{results / name} is missing or empty; remove work/ and results/ and run the build again"
            )
    return Built(
        bitstream=results / "accelerator.bit",
        hwh=results / "accelerator.hwh",
        resources=read_utilization(results / "utilization.rpt"),
        timing=read_timing(results / "timing_summary.rpt", float(facts["clock_mhz"]) * 1e6),
        power=read_power(results / "power.rpt"),
        tools={"vivado": facts["vivado"]},
    )


def _facts(path: Path) -> Mapping[str, str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path} cannot be read ({error}); run the build again") from None
    facts = {name: value for name, _, value in (line.partition(" ") for line in lines)}
    known = {"key": r"[0-9a-f]{64}", "vivado": r"\S+", "clock_mhz": r"\d+(\.\d+)?"}
    for name, pattern in known.items():
        if not re.fullmatch(pattern, facts.get(name, "")) or (name == "clock_mhz" and not float(facts[name])):
            raise BundleError(f"{path}: {name} is {facts.get(name, '')[:80]!r}; run the build again")
    return facts
