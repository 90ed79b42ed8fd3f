"""A run of the tools, and what it leaves."""

from __future__ import annotations

import hashlib
import json
import reprlib
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edgedec.boards.flows.ecp5.floor_plan import floor_plan
from edgedec.boards.flows.ecp5.project import command, lowered_clock
from edgedec.boards.flows.ecp5.reports import read_report
from edgedec.boards.flows.ecp5.tool import find_tools
from edgedec.boards.flows.interface import BoardDesign, Built
from edgedec.boards.flows.steps import build_by_steps
from edgedec.errors import BundleError
from edgedec.progress import Progress, silent

__all__ = ["read_results", "run_project"]

_FACTS, _REPORT, _PLACEMENT = "results/facts.json", "results/nextpnr.json", "results/placement.tsv"
_AGAIN = "remove results/ and run the build again"


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
    """None also where the bitstream itself is gone, or what is damaged is of another seed: it is built, and takes its place.

    Raises:
        BundleError: they are of another project, or damaged: a person may want to know, before an hour of work or where
            there are no tools.
    """
    if not (folder / _FACTS).is_file():
        return None
    facts = _facts(folder / _FACTS)
    if facts["key"] != json.loads((folder / "settings.json").read_text("utf-8"))["key"]:
        raise BundleError(f"{folder / _FACTS} is of another build than this project; {_AGAIN}")
    damaged = [folder / name for name, digest in facts["files"].items() if not _is_whole(folder / name, digest)]
    if damaged and (facts["seed"] != design.seed or not (folder / facts["bitstream"]).exists()):
        return None
    for path in damaged:
        raise BundleError(f"{path} {'was changed' if path.exists() else 'is missing'} since it was made; {_AGAIN}")
    clocks = json.loads((folder / "settings.json").read_text("utf-8"))["clocks_hz"]
    resources, timing = read_report(folder / _REPORT, clocks)
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


def _is_whole(path: Path, digest: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def _nearest(design: BoardDesign, timing: Mapping[str, Any]) -> float | None:
    """A clock that would do; none if it is another one that is missed."""
    first, *others = timing["clocks"].values()
    return lowered_clock(design, first["achieved_hz"]) if all(clock["met"] for clock in others) else None


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text("utf-8"))
        good = (
            isinstance(facts["key"], str)
            and type(facts["seed"]) is int
            and isinstance(facts["bitstream"], str)
            and {facts["bitstream"], _REPORT, _PLACEMENT} == set(facts["files"])
            and Path(facts["bitstream"]).name == facts["bitstream"]
            and all(isinstance(text, str) for text in [*facts["tools"].values(), *facts["files"].values()])
        )
        if not good:
            raise ValueError("a member is of another type")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(f"{path} is damaged: {reprlib.repr(str(error))}; {_AGAIN}") from None
    assert isinstance(facts, dict)
    return facts
