"""A run of the tools, and what it leaves."""

from __future__ import annotations

import json
import re
import reprlib
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edgedec.boards.flows.facts import AGAIN, read_facts
from edgedec.boards.flows.interface import NOT_PROVEN, BoardDesign, Built
from edgedec.boards.flows.openxc7.project import HANDOFF, command
from edgedec.boards.flows.openxc7.tool import find_places, find_tools
from edgedec.boards.flows.steps import build_by_steps
from edgedec.errors import BundleError
from edgedec.progress import Progress, silent

__all__ = ["REASON", "read_results", "run_project"]

REASON = "block RAM and PS7 paths are not analysed"
_AREA = "results/area.json"
_MOST_BYTES = 16 << 20
# Patterns of yosys' cells for each of edgedec.board.RESOURCES, with the share of one that a cell takes.
_CELLS: Mapping[str, Mapping[str, float]] = {
    "lut": {r"LUT[1-6]|INV": 1, r"SRL16E|SRLC32E": 1, r"RAM(32|64)M": 4, r"RAM(32|64)X1D": 2, r"RAM128X1D": 4},
    "ff": {r"FD[RSCP]E(_1)?": 1},
    "bram36": {r"RAMB36E1": 1, r"RAMB18E1": 0.5},
    "uram": {},
    "dsp": {r"DSP48E1": 1},
}


def run_project(design: BoardDesign, folder: Path, *, progress: Progress = silent) -> Built:
    """Raises:
    ToolError: a tool or a database is missing or too old.
    EdgedecError: one failed; names the step, what it said, and the logs.
    """
    find_tools()
    find_places(design.board.part)
    return build_by_steps(
        [sys.executable, "build.py", "--seed", str(design.seed), "--locked"],
        folder,
        partial(read_results, design, folder),
        who="building",
        log="work",
        again=f", run edgedec again, or: {command(folder, design.seed)}",
        progress=progress,
    )


def read_results(design: BoardDesign, folder: Path) -> Built | None:
    """Return what the results of a run say, or None: see ``edgedec.boards.flows.facts``, also for the errors."""
    settings = json.loads((folder / "settings.json").read_text("utf-8"))
    facts = read_facts(folder, settings["key"], [_AREA], seed=design.seed, is_good=_has_clocks)
    if facts is None:
        return None
    return Built(
        bitstream=folder / facts["bitstream"],
        hwh=folder / HANDOFF,
        resources=read_area(folder / _AREA),
        timing=_timing(facts, settings["clock_hz"]),
        tools=facts["tools"],
        seed=facts["seed"],
    )


def read_area(path: Path) -> dict[str, float]:
    """Return the counts of RESOURCES in the netlist, all of whose cells are placed.

    Raises:
        BundleError: the file is missing or is no report of yosys.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
        cells = json.loads(path.read_text("utf-8"))["design"]["num_cells_by_type"]
        return {name: _counted(cells, patterns) for name, patterns in _CELLS.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(f"{path} is no report of yosys: {reprlib.repr(str(error))}; {AGAIN}") from None


def _counted(cells: Mapping[str, int], patterns: Mapping[str, float]) -> float:
    found = sum(
        share * count
        for pattern, share in patterns.items()
        for cell, count in cells.items()
        if re.fullmatch(pattern, cell)
    )
    return int(found) if found == int(found) else found


def _timing(facts: Mapping[str, Any], clock_hz: float) -> dict[str, Any]:
    """Return the timing, which is never met: at best it is not proven. It is not met if a path that was analysed is slow."""
    clocks = facts["clocks"]
    analysed = min((clock["analysed_hz"] for clock in clocks.values()), default=None)
    timing = {
        "kind": NOT_PROVEN,
        "reason": REASON,
        "clock_hz": clock_hz,
        "analysed_hz": analysed,
        "seed": facts["seed"],
    }
    return {**timing, "met": False} if any(clock["slow"] for clock in clocks.values()) else timing


def _has_clocks(facts: Mapping[str, Any]) -> bool:
    return all(
        type(clock["slow"]) is bool and type(clock["analysed_hz"]) in (int, float) for clock in facts["clocks"].values()
    )
