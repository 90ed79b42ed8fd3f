"""Count the instructions that a board's processor executes for a round of the compiled loop, part by part.

    .venv/bin/python -m benchmarks.accelerator.host_instructions [--json]
    .venv/bin/python -m benchmarks.accelerator.host_instructions --write-docs      # keeps the counts; minutes

Loop, kernels and ``host_driver.cpp`` are compiled for AArch64 by Debian's cross compiler and run under qemu-user, as the
Cortex-A53 of a Zynq UltraScale+. Each part runs with two numbers of repetitions, whose difference is the figure. The sizes
are those of BitNet-0.73B (32,002 tokens, 1,536 columns, 8 slots). "draft pass" is one of the embedded draft model.

Nothing is timed. ``host_costs`` makes seconds of the counts: ``CYCLES`` cycles for an instruction, both ends, at
``CLOCK_HZ``, and beside them what no instruction of the loop takes: accesses to registers, system calls for the host's
cache, and the time until the end of a pass is noticed. These are estimates, and no board was measured.

JSON: {"compiler", "parts": {part: {size: instructions}}}.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accelerator.device_clock import HostCosts
from benchmarks.accelerator.host_python import PYTHON_PARTS, count_python
from benchmarks.cpu.arm_instructions import COMPILER, build_program, emulated
from benchmarks.support.docs_tables import markdown_table, write_blocks
from edgedec import demo
from edgedec.bundle.atomic import new_file
from edgedec.bundle.bundle import Bundle
from edgedec.cli.console import note
from edgedec.errors import ToolError, UsageError
from edgedec.runtime.kernels.recipe import COMMON, FOLDER, LOOP, SESSIONS
from edgedec.runtime.kernels.sessions.session import _TYPES, KernelSession, Memory
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.targets import open_target

__all__ = ["BOARD_HOSTS", "CLOCK_HZ", "CYCLES", "count", "host_costs", "read_counts", "table"]

FILE = Path(__file__).resolve().parent / "figures" / "host_instructions.json"
CLOCK_HZ = 1.333e9  # the KV260's Cortex-A53 has it
# Cycles for an instruction. The Cortex-A53 issues two at a time at best, in order, and waits for its caches.
CYCLES = (0.8, 2.0)
ACCESS_S, CALL_S = 0.3e-6, 20e-6  # seconds of an access to a register, and of a system call
# Seconds until the end of a pass is noticed: half of the loop's sleep, or all of it and the 50 us that Linux may add to it.
NOTICE_S = (10e-6, 70e-6)
BOARD_HOSTS = ("board's host, at best", "board's host, at worst")

_SLOTS = 8
_REPETITIONS = (2, 6)
_DRAFTERS = ("ngram", "copy", "stand", "trigram", "auto", "model")
_PAST = 255  # rows in the cache of the draft model's pass
_SIZES = (1, 2, 4, 8)
# Results of a pass with a rough head: the loop scores so many likeliest tokens of each row again.
_ROUGH = [f"rough result of {number}" for number in (16, 32)]
_TEXTS = "texts"  # a round of so many texts without guesses
_KINDS = {"commit": (1, 3, 6), **dict.fromkeys(("submit", "result", *_ROUGH, "round", _TEXTS), _SIZES)}
_PASS = "pass"


def parts() -> Iterator[tuple[str, int]]:
    """Yield the parts of ``host_driver.cpp`` that are counted, and their sizes."""
    for kind, sizes in _KINDS.items():
        yield from ((kind, size) for size in sizes)
    for drafter in _DRAFTERS:
        yield from ((f"{drafter} expand", size) for size in range(1, 4))
        yield from ((f"{drafter} observe", size) for size in _SIZES)
    for policy in ("chain", "hardware"):
        yield from ((f"ngram {policy}", size) for size in _SIZES)
    yield from ((_PASS, size) for size in _SIZES)


def build_driver(folder: Path) -> Path:
    """Compile loop, kernels and driver for AArch64 and return the program. See ``build_program`` for the errors."""
    return build_program(
        folder / "host_driver",
        Path(__file__).with_name("host_driver.cpp"),
        units=(*COMMON, *SESSIONS, *(f"../loop/{name}" for name in LOOP)),
        extra=(f"-I{FOLDER.parent / 'loop'}", f"-I{FOLDER}"),
    )


def write_session(folder: Path, rows: int) -> None:
    """Write the embedded draft model's session to a folder, with the inputs of a pass of ``rows`` rows."""
    kept: dict[str, Any] = {}
    begin, bind = KernelSession.__init__, KernelSession.bind

    def begun(session: KernelSession, kernels: Any, model: Any, **options: Any) -> None:
        kept.update(model=model, initializers=options["initializers"])
        begin(session, kernels, model, **options)

    def bound(session: KernelSession, inputs: Mapping[str, Memory], outputs: Mapping[str, Memory]) -> None:
        kept.update(inputs=inputs, outputs=outputs)
        bind(session, inputs, outputs)

    KernelSession.__init__, KernelSession.bind = begun, bound  # type: ignore[method-assign, assignment]
    try:
        limits = Limits(nodes=_SLOTS, depth=_SLOTS - 1, positions=1024)
        target = open_target(Bundle.open(demo.bundle_path("demo-draft")), limits=limits, threads=1)
        state = target.open(limits)
        while state.length < _PAST:
            step = np.arange(min(_SLOTS, _PAST - state.length), dtype=np.int32)
            work = Pass(ids=step + 100, positions=state.length + step)
            target.submit([(state, work)]).result()
            state.commit(step)
        step = np.arange(rows, dtype=np.int32)
        target.submit([(state, Pass(ids=step + 100, positions=state.length + step, logits=step))]).result()
    finally:
        KernelSession.__init__, KernelSession.bind = begin, bind  # type: ignore[method-assign]
    if not hasattr(kept["model"], "record"):
        raise ToolError("the draft model is no program of the kernels; build them, with a C++ compiler on the PATH")
    folder.mkdir()
    (folder / "record").write_bytes(kept["model"].record)
    constants = {name: Memory(array, array.shape) for name, array in kept["initializers"].items()}
    with (folder / "tensors").open("w") as tensors, (folder / "data").open("wb") as data:
        for kind, named in enumerate((constants, kept["inputs"], kept["outputs"])):
            for name, (array, dims) in named.items():
                sizes = (*dims, *(0,) * (4 - len(dims)))
                print(kind, name, array.nbytes, _TYPES[array.dtype.name], len(dims), *sizes, file=tensors)
                data.write(array.tobytes())


def count(program: Path, folder: Path) -> dict[str, dict[int, int]]:
    """Return the instructions of each part by size.

    Raises:
        ToolError: the driver fails.
    """
    counts: dict[str, dict[int, int]] = {}
    for part, size in parts():
        session = folder / f"session-{size}"
        if part == _PASS and not session.exists():
            write_session(session, size)
        fewer, more = (_run(program, part, size, times, session) for times in _REPETITIONS)
        counts.setdefault(part, {})[size] = (more - fewer) // (_REPETITIONS[1] - _REPETITIONS[0])
    return _as_booked(counts)


def _run(program: Path, part: str, size: int, repetitions: int, session: Path) -> int:
    return emulated([str(program), part, str(size), str(repetitions), str(session)], cpu="cortex-a53").instructions


def _as_booked(counts: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]]:
    """Return the parts by the names of ``Books``: the loop's own is what is left of a round without its parts."""
    booked = {name: dict(sizes) for name, sizes in counts.items() if name not in ("round", _PASS)}
    chain, policy = booked.pop("ngram chain"), booked.pop("ngram hardware")
    loop = {}
    for rows, whole in counts["round"].items():
        own = whole - booked["submit"][rows] - booked["result"][rows]
        loop[rows] = own if rows == 1 else own - chain[rows] - booked["ngram observe"][rows]
    calls = _SLOTS - 1  # a tree of all slots takes so many calls of the draft
    booked["hardware grow"] = {0: policy[1], 1: max(0, policy[_SLOTS] - chain[_SLOTS]) // calls}
    return {**booked, "loop": loop, "draft pass": dict(counts[_PASS])}


def read_counts() -> dict[str, dict[int, int]]:
    """Return the counts that were kept."""
    kept: dict[str, dict[str, int]] = json.loads(FILE.read_text("utf-8"))["parts"]
    return {part: {int(size): number for size, number in sizes.items()} for part, sizes in kept.items()}


def _accesses(part: str, size: int) -> int:
    """Return the accesses to registers of a part: see ``runtime/loop/accelerator.cpp``."""
    if part == "submit":
        return 5 + 2 * size  # address, parameters, positions, masks, events, doorbell
    if part == _TEXTS:  # also where sequences begin, their groups, and the positions of all but the first
        return _accesses("submit", size) + _accesses("result", size) + 2 * size
    if part == "python post":
        return 26  # a pass takes them, with the address of its input, and the queue
    if part in ("result", *_ROUGH):
        return 15  # status, events, the latch, and six counters of two words
    # Address, slots, parameters, events, doorbell. The next pass clears no events, and its result clears the commit's.
    return 6 if part == "commit" else 0


def host_costs(end: int, counts: Mapping[str, Mapping[int, int]] | None = None, *, rough: int = 0) -> HostCosts:
    """Return the seconds of the board's host by part and size, at the low (0) or the high (1) end of their range.

    ``rough``: tokens of a rough head that are scored again, of which the parts have counts; 0: the head is another one.
    """
    calls = {"submit": 1, "result": 1, **dict.fromkeys((*_ROUGH, _TEXTS), 2), "python post": 1}
    notices = dict.fromkeys(("result", *_ROUGH, _TEXTS), 1)  # a commit's end is noticed with the next pass
    seconds = {}
    for part, sizes in (read_counts() if counts is None else counts).items():
        for size, instructions in sizes.items():
            beside = (
                _accesses(part, size) * ACCESS_S + calls.get(part, 0) * CALL_S + notices.get(part, 0) * NOTICE_S[end]
            )
            seconds[part, size] = instructions * CYCLES[end] / CLOCK_HZ + beside
    if rough:
        part = f"rough result of {rough}"
        own = {("result", size): due for (name, size), due in seconds.items() if name == part}
        if not own:
            raise UsageError(f"{part} was not counted; known parts: {', '.join(sorted({name for name, _ in seconds}))}")
        seconds |= own
    return HostCosts(table=seconds)


def table(counts: Mapping[str, Mapping[int, int]]) -> str:
    """Return the counts and the microseconds of both ends as a table of Markdown."""
    costs = [host_costs(end, counts) for end in (0, 1)]
    rows = []
    for part in sorted(counts):
        sizes = sorted(counts[part])
        shown = dict.fromkeys((sizes[0], sizes[-1]))
        cells = []
        for size in shown:
            low, high = (1e6 * cost.seconds(part, size) for cost in costs)
            cells.append(f"{size}: {counts[part][size]:,} ({low:.0f} to {high:.0f})")
        rows.append([part, *cells, *[""] * (2 - len(cells))])
    return markdown_table(["part", "smallest size: instructions (microseconds)", "largest size"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-docs", action="store_true", help="keep the counts and write docs/")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--root",
        type=Path,
        help="root of tests.boards.root, in which Python's parts are counted; else they stay as they are",
    )
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            counts = count(build_driver(Path(scratch)), Path(scratch))
            if args.root is None:
                counts |= {part: sizes for part, sizes in read_counts().items() if part in PYTHON_PARTS}
            else:
                (python := Path(scratch) / "python").mkdir()
                counts |= count_python(args.root, python, counts[_TEXTS])
    except ToolError as error:
        note(f"host_instructions: {error}")
        sys.exit(error.exit_code)
    version = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    if args.write_docs:
        with new_file(FILE) as partial:
            partial.write_text(json.dumps({"compiler": version, "parts": counts}) + "\n", "utf-8")
        write_blocks({"speculation instructions": table(read_counts())})
    if args.json:
        print(json.dumps({"compiler": version, "parts": counts}, indent=1))
    else:
        print(table(counts))


if __name__ == "__main__":
    main()
