"""Vivado on this machine: where it is, and whether it is new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from edgedec.errors import ToolError

__all__ = ["LABEL", "MINIMUM", "find_tools", "find_vivado"]

LABEL = "Vivado"
MINIMUM = (
    "2021.1"  # the first whose catalogue has every part of boards/, the K26 among them, and assign_bd_address -offset
)
_VARIABLE = "XILINX_VIVADO"  # variable set by Vivado's settings64.sh
_TIMEOUT_S = 300  # its first start from a network's disk
_GET = (
    f"get Vivado {MINIMUM} or newer from AMD (its free edition has these parts), run its settings64.sh, or set {_VARIABLE} "
    "to its folder"
)


def find_tools() -> Mapping[str, str]:
    """Raises:
    ToolError: there is none, it does not start, or it is too old.
    """
    path = find_vivado()
    found = _version(path)
    if _numbers(found) < _numbers(MINIMUM):
        raise ToolError(f"{path} is Vivado {found}, {MINIMUM} or newer is needed; {_GET}")
    return {"vivado": found}


def find_vivado() -> Path:
    """The program, by PATH or by XILINX_VIVADO.

    Raises:
        ToolError: there is none.
    """
    for path in _candidates():
        if path.is_file() and os.access(path, os.X_OK):
            return path.absolute()
    folder = os.environ.get(_VARIABLE)
    where = f"nor in {_VARIABLE}={folder}" if folder else f"and {_VARIABLE} is not set"
    raise ToolError(f"Vivado is not on the PATH, {where}; {_GET}")


def _candidates() -> Iterator[Path]:
    found = shutil.which("vivado")
    if found:
        yield Path(found)
    if os.environ.get(_VARIABLE):
        yield Path(os.environ[_VARIABLE]) / "bin" / "vivado"


def _version(path: Path) -> str:
    try:
        done = subprocess.run(
            [str(path), "-version"], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{path} does not start: {error}; {_GET}") from None
    match = re.search(r"\bv(?:ivado v)?\.?(\d{4}\.\d+(?:\.\d+)?)", done.stdout, re.IGNORECASE)
    if done.returncode or match is None:
        said = " ".join((done.stdout + done.stderr).split())[:200]
        raise ToolError(f"{path} -version says no version of Vivado: {said or 'nothing'}; {_GET}")
    return match[1]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
