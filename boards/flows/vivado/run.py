"""A run of Vivado, and what it leaves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edgedec.boards.flows.interface import BoardDesign, Built
from edgedec.boards.flows.steps import build_by_steps
from edgedec.boards.flows.vivado.project import command
from edgedec.boards.flows.vivado.reports import (
    read_attempts,
    read_failing_path,
    read_power,
    read_timing,
    read_utilization,
)
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
    timing = _timing(results, facts)
    bitstream = "accelerator.bit" if timing["met"] else "accelerator.timing-not-met.bit"
    for name in (bitstream, "accelerator.hwh"):
        if not (results / name).is_file() or not (results / name).stat().st_size:
            raise BundleError(
                f"{results / name} is missing or empty; remove work/ and results/ and run the build again"
            )
    return Built(
        bitstream=results / bitstream,
        hwh=results / "accelerator.hwh",
        resources=read_utilization(results / "utilization.rpt"),
        timing=timing,
        power=read_power(results / "power.rpt"),
        tools={"vivado": facts["vivado"]},
    )


def _timing(results: Path, facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the slacks, what was ``tried`` before them, and, if timing is not met, the reason with the failing path."""
    timing = read_timing(results / "timing_summary.rpt", float(facts["clock_mhz"]) * 1e6)
    timing["tried"] = read_attempts(results / "attempts.txt")
    if timing["met"]:
        return timing
    path = read_failing_path(results / "facts.txt", facts)
    if path is None:
        return {**timing, "reason": f"a pulse of the clock is too short by {-timing['wpws_ns']:g} ns"}
    reason = (
        f"the first failing path ({path['kind']}) starts at {path['from']} and ends at {path['to']}; it has a slack of "
        f"{path['slack_ns']:g} ns and takes {path['delay_ns']:g} ns through {path['levels']} levels of logic"
    )
    return {**timing, "reason": reason, "failing_path": path}


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
