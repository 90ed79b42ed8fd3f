"""A run of the tools, and what it leaves."""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edgedec.boards.flows.interface import NOT_PROVEN, BoardDesign, Built
from edgedec.boards.flows.openxc7.project import HANDOFF, command
from edgedec.boards.flows.openxc7.tool import find_places, find_tools
from edgedec.boards.flows.steps import build_by_steps
from edgedec.errors import BundleError
from edgedec.progress import Progress, silent

__all__ = ["REASON", "read_results", "run_project"]

REASON = "block RAM, DSP and PS7 paths are not analysed"
_FACTS, _AREA = "results/facts.json", "results/area.json"
_AGAIN = "remove results/ and run the build again"
_MOST_BYTES = 16 << 20
# Patterns of yosys' cells for each of edgedec.board.RESOURCES, with the share of one that a cell takes.
_CELLS: Mapping[str, Mapping[str, float]] = {
    "lut": {r"LUT[1-6]|INV": 1, r"RAM(32|64)M": 4, r"RAM(32|64)X1D": 2, r"RAM128X1D": 4},
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
    """None also where the bitstream itself is gone, or what is damaged is of another seed: it is built, and takes its place.

    Raises:
        BundleError: they are of another project, or damaged.
    """
    if not (folder / _FACTS).is_file():
        return None
    facts = _facts(folder / _FACTS)
    settings = json.loads((folder / "settings.json").read_text("utf-8"))
    if facts["key"] != settings["key"]:
        raise BundleError(f"{folder / _FACTS} is of another build than this project; {_AGAIN}")
    damaged = [folder / name for name, digest in facts["files"].items() if not _is_whole(folder / name, digest)]
    if damaged and (facts["seed"] != design.seed or not (folder / facts["bitstream"]).exists()):
        return None
    for path in damaged:
        raise BundleError(f"{path} {'was changed' if path.exists() else 'is missing'} since it was made; {_AGAIN}")
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
        raise BundleError(f"{path} is no report of yosys: {reprlib.repr(str(error))}; {_AGAIN}") from None


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


def _is_whole(path: Path, digest: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text("utf-8"))
        good = (
            isinstance(facts["key"], str)
            and type(facts["seed"]) is int
            and isinstance(facts["bitstream"], str)
            and {facts["bitstream"], _AREA} == set(facts["files"])
            and Path(facts["bitstream"]).name == facts["bitstream"]
            and all(isinstance(text, str) for text in [*facts["tools"].values(), *facts["files"].values()])
            and all(
                type(clock["slow"]) is bool and type(clock["analysed_hz"]) in (int, float)
                for clock in facts["clocks"].values()
            )
        )
        if not good:
            raise ValueError("a member is of another type")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(f"{path} is damaged: {reprlib.repr(str(error))}; {_AGAIN}") from None
    assert isinstance(facts, dict)
    return facts
