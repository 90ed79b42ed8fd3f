"""Count the instructions of a board's Python for texts on an accelerator, the parts of ``host_instructions`` beside C++.

    .venv/bin/python -m tests.boards.root --arch arm64 --python 3.10                         # makes build/board-root/root
    .venv/bin/python -m benchmarks.accelerator.host_instructions --write-docs --root build/board-root/root

``still_session.py`` runs in a board's root file system with the scheduler, the target and the driver of this checkout, and
a board bundle of BitNet-0.73B's sizes with one layer, whose passes have always ended. qemu counts by a plugin, which is
compiled here. The root's Python 3.10 is compiled without the optimization by profiles that Ubuntu's has, and takes more
instructions.

The parts are "python read" (tokens of so many texts, while the next pass runs), "python flight" (ending a flight of them and
beginning the next one), and of a prompt of 128 tokens "python ask" (up to its first pass), "python post" (each further one),
"python begin" (from the end of its last pass to the pass of the first token) and "python first" (that token's result).
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from benchmarks.cpu.arm_instructions import COMPILER
from edgedec.boards import all_boards, find_board
from edgedec.bundle.bundle import Bundle
from edgedec.errors import ToolError
from edgedec.hw.compiler.shapes import shape_graph, shape_model, shape_program
from edgedec.hw.handoff.write import write_hwh
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.runtime.accelerator.board_bundle import write_board_bundle
from edgedec.runtime.kernels.recipe import LOOP_LIBRARY, build_loop
from edgedec.runtime.loop.rounds import MOST_ROUNDS

__all__ = ["PYTHON_PARTS", "count_python"]

PYTHON_PARTS = ("python read", "python flight", "python ask", "python post", "python begin", "python first")
_PROJECT = Path(__file__).resolve().parents[2]
_FOLDERS = ("boards", "hw", "quantize", "runtime", "sim")
_TRIPLET = "aarch64-linux-gnu"
_USERS = (1, 2, 4, 8)
_ASKED, _SUBMITTED, _LANDED, _STEPPED = range(4)  # marks of still_session.py


def count_python(root: Path, folder: Path, loop: Mapping[int, int]) -> dict[str, dict[int, int]]:
    """Return the instructions of each part by size.

    Args:
        root: root file system of ``tests.boards.root``.
        folder: an empty folder.
        loop: instructions of the compiled loop for a round of so many texts, which run in a thread beside.

    Raises:
        ToolError: the root has no Python 3.10, or a program fails.
    """
    bundle = _write_bundle(folder)
    _write_package(folder / "packages" / "edgedec")
    plugin = folder / "plugin.so"
    _run("cc", "-O2", "-shared", "-fPIC", "-o", plugin, Path(__file__).with_name("count_plugin.c"))
    counts: dict[str, dict[int, int]] = {part: {} for part in PYTHON_PARTS}
    for users in _USERS:
        marks = _marks(root.resolve(), folder, plugin, bundle, "texts", str(users))
        at = [count for mark, count in marks if mark == _STEPPED]
        steps = [after - before for before, after in pairwise(at)]
        usual = int(statistics.median(steps))
        counts["python read"][users] = usual - loop[users]
        # Some steps have no round, because a flight ends or the collector runs; what they take is shared among all flights.
        counts["python flight"][users] = (sum(steps) - usual * len(steps)) * MOST_ROUNDS // len(steps)
    marks = _marks(root.resolve(), folder, plugin, bundle, "prompt")
    places = [at for at, (mark, _) in enumerate(marks) if mark == _ASKED]
    found = [_of_prompt(marks[begin:end]) for begin, end in pairwise([*places, len(marks)])]
    for part in PYTHON_PARTS[2:]:  # the first request of a session does more
        counts[part][1] = int(statistics.median(one[part] for one in found[1:]))
    return counts


def _of_prompt(marks: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Return the instructions of the parts of one request."""
    passes = [count for mark, count in marks if mark == _SUBMITTED]
    landed = next(count for mark, count in marks if mark == _LANDED)
    ended = next(count for mark, count in marks if mark == _STEPPED)
    return {
        "python ask": passes[0] - marks[0][1],
        "python post": (passes[-2] - passes[0]) / (len(passes) - 2),
        "python begin": passes[-1] - landed,
        "python first": ended - passes[-1],
    }


def _write_bundle(folder: Path) -> Path:
    """Return a board bundle of BitNet-0.73B's sizes with one layer, for eight texts on the KV260."""
    shape, board = dict(SHAPES["bitnet-0.73b"]), find_board("kv260")
    config = config_for_board(shape_model(shape_graph(shape)), board, others=all_boards(), texts=8, context=8 * 512)
    shape["num_hidden_layers"] = 1
    words = {"type": "WordLevel", "vocab": {f"w{at}": at for at in range(shape["vocab_size"])}, "unk_token": "w0"}
    tokenizer = {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": words}
    write_random_bundle(folder / "source", shape, tokenizer_json=json.dumps(tokenizer))
    bundle, program = Bundle.open(folder / "source"), shape_program(shape_graph(shape), config, image=True)
    bitstream, hwh = folder / "top.bit", folder / "top.hwh"
    bitstream.write_bytes(b"none")
    write_hwh(config, hwh, family="zynq-ultrascale+", rtlil_hash=1)
    write_board_bundle(
        folder / "still.board",
        bundle=bundle,
        program=replace(program, host=replace(program.host, bundle=bundle.sha256)),
        bitstream=bitstream,
        hwh=hwh,
        rtlil_hash=1,
        board="kv260",
    )
    return folder / "still.board"


def _write_package(package: Path) -> None:
    """Write this checkout's package with the loop for AArch64."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(_PROJECT / "edgedec", package, ignore=ignored)
    for name in _FOLDERS:
        shutil.copytree(_PROJECT / name, package / name, ignore=ignored)
    build_loop([COMPILER], package / "runtime" / "loop" / LOOP_LIBRARY)


def _marks(root: Path, folder: Path, plugin: Path, *words: str | Path) -> list[tuple[int, int]]:
    """Return each mark of still_session.py with the count at it."""
    places = (f"{root}/{place}" for place in (f"lib/{_TRIPLET}", f"usr/lib/{_TRIPLET}"))
    variables = {
        "PYTHONHOME": f"{root}/usr",
        "PYTHONPATH": f"{folder}/packages:{root}/opt/edgedec",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": ":".join(places),
    }
    settings = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
    command: list[str | Path] = ["qemu-aarch64", "-cpu", "cortex-a53", "-plugin", plugin, "-L", root, *settings]
    script = Path(__file__).with_name("still_session.py")
    text = _run(*command, root / "usr/bin/python3.10", script, *words)
    found = [line.split() for line in text.splitlines() if line.startswith("mark ")]
    return [(int(mark), int(count)) for _, mark, count in found]


def _run(*command: str | Path) -> str:
    """Return what a program writes to stderr.

    Raises:
        ToolError: it cannot be run, or fails.
    """
    words: Sequence[str] = [str(word) for word in command]
    try:
        process = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolError(f"{words[0]} cannot be run: {error}") from error
    if process.returncode:
        raise ToolError(f"{words[0]} failed: {process.stderr[-2000:]}")
    return process.stderr
