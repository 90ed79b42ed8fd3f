"""Put a bitstream into a board: into its fabric, or into the flash that it starts from, by openFPGALoader."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from edgedec.board import Board
from edgedec.errors import DeviceError, ToolError, UnsupportedError

__all__ = ["find_loader", "load_bitstream"]

_PROGRAM = "openFPGALoader"
_TIMEOUT_S = 300
_SHOWN_LINES = 3


def find_loader(board: Board) -> str:
    """Return the path of openFPGALoader.

    Raises:
        UnsupportedError: it does not know the board.
        ToolError: it is not installed.
    """
    if board.loader is None:
        other = "copy the board bundle with edgedec deploy"
        if board.link == "uart":
            other = "load the .bit with the board's own program, or give loader and loads in the board's file"
        raise UnsupportedError(f"{board.name} has no name in {_PROGRAM}; leave --load out, and {other}")
    path = shutil.which(_PROGRAM)
    if path is None:
        raise ToolError(
            f"{_PROGRAM} is not on the PATH; install it (Debian: apt install openfpgaloader; others: "
            "https://trabucayre.github.io/openFPGALoader), or leave --load out"
        )
    return path


def load_bitstream(board: Board, path: Path) -> None:
    """Load a bitstream into the board's fabric or flash, as the board's ``loads`` says.

    Raises:
        UnsupportedError, ToolError: as ``find_loader``.
        DeviceError: it failed, or took too long; names what it said.
    """
    words = [find_loader(board), "-b", str(board.loader), str(path)]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"{_PROGRAM} did not end within {_TIMEOUT_S} s; check the cable and run: {' '.join(words)}"
        ) from None
    except OSError as error:
        raise ToolError(f"{words[0]} does not start: {error.strerror or error}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stdout.replace("\r", "\n").splitlines() if line.strip()]
        said = "; ".join(lines[-_SHOWN_LINES:]) or f"status {done.returncode} and nothing else"
        check = "the cable, and that you may use the device"
        if board.loads == "flash":
            check = "the cable, that you may use the device, and that the board's bootloader runs"
        raise DeviceError(f"{_PROGRAM} could not load {path.name} into {board.name}: {said}; check {check}")
