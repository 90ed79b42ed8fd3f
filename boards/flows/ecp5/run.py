"""A run of the tools, and what it leaves."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edgedec.boards.flows.ecp5.floor_plan import floor_plan
from edgedec.boards.flows.ecp5.project import command, lowered_clock
from edgedec.boards.flows.ecp5.reports import read_report
from edgedec.boards.flows.ecp5.tool import find_tools
from edgedec.boards.flows.facts import read_facts
from edgedec.boards.flows.interface import BoardDesign, Built
from edgedec.boards.flows.steps import build_by_steps
from edgedec.progress import Progress, silent

__all__ = ["read_results", "run_project"]

_REPORT, _PLACEMENT = "results/nextpnr.json", "results/placement.tsv"


def run_project(design: BoardDesign, folder: Path, *, progress: Progress = silent) -> Built:
    """Raises:
    ToolError: a tool is missing or too old.
    EdgedecError: one failed; names the step, what it said, and the logs.
    """
    find_tools()
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
    facts = read_facts(folder, settings["key"], (_REPORT, _PLACEMENT), seed=design.seed)
    if facts is None:
        return None
    resources, timing = read_report(folder / _REPORT, settings["clocks_hz"])
    timing |= {"seed": facts["seed"]}
    if not timing["met"]:
        timing["nearest_hz"] = _nearest(design, timing)
    return Built(
        bitstream=folder / facts["bitstream"],
        hwh=None,
        resources=resources,
        timing=timing,
        tools=facts["tools"],
        floor_plan=floor_plan(folder / _PLACEMENT),
        seed=facts["seed"],
    )


def _nearest(design: BoardDesign, timing: Mapping[str, Any]) -> float | None:
    """A clock that would do; none if it is another one that is missed."""
    first, *others = timing["clocks"].values()
    return lowered_clock(design, first["achieved_hz"]) if all(clock["met"] for clock in others) else None
