"""End a build in a process of its own while a tool works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from edgedec.board import Board
from edgedec.boards.flows.build import build
from edgedec.errors import EdgedecError
from edgedec.hw.compiler.program import Program

_LIMIT_S = 60
_BUILD = """
import sys
from pathlib import Path
from edgedec.boards.flows.build import build
from edgedec.boards import find_board
from edgedec.hw.compiler.program_file import load_program
build(find_board(sys.argv[2]), load_program(Path(sys.argv[1]) / "program"), Path(sys.argv[1]), seed=int(sys.argv[3]))
"""


def interrupt_build(board: Board, program: Program, output: Path, log: Path, word: str, *, seed: int = 1) -> None:
    """Press Ctrl-C once the tools' log has the word; until then no other build may start, and afterwards no process
    stays.
    """
    another = partial(another_is_refused, board, program, output)
    assert ended(building(output, board, seed), signal.SIGINT, log, word, meanwhile=another) != 0
    assert running_in(output) == {}


def another_is_refused(board: Board, program: Program, output: Path) -> None:
    with pytest.raises(EdgedecError, match="another process builds in"):
        build(board, program, output, run=False)


def building(output: Path, board: Board, seed: int) -> list[str]:
    """Return the command that continues in a folder that is written."""
    return [sys.executable, "-c", _BUILD, str(output), board.name, str(seed)]


def ended(
    command: Sequence[str],
    number: signal.Signals,
    log: Path,
    word: str,
    *,
    meanwhile: Callable[[], None] = lambda: None,
) -> int:
    """Return the exit code of a command that alone gets a signal, once ``log`` has the word."""

    def heard() -> None:  # also if these tests run under nohup, or in a shell's background
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)

    nowhere = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=nowhere, stderr=nowhere, preexec_fn=heard) as process:
        try:
            limit = time.monotonic() + _LIMIT_S
            while not log.exists() or word not in log.read_text():
                assert time.monotonic() < limit
                assert process.poll() is None
                time.sleep(0.02)
            meanwhile()
            process.send_signal(number)
            return process.wait(_LIMIT_S)
        finally:
            process.kill()


def running_in(folder: Path) -> dict[int, Path]:
    """Return the processes in this folder or a folder inside, with their folder."""
    folders = {}
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            folders[int(link.parent.name)] = Path(os.readlink(link))
    return {process: path for process, path in folders.items() if path.is_relative_to(folder)}
