"""Run the programs that make a root file system."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from edgedec.errors import ToolError

__all__ = ["run"]

LIMIT_S = 3600  # seconds for one program


def run(
    *command: str | Path, environment: Mapping[str, str] | None = None, cwd: Path | None = None, message: str = ""
) -> str:
    """Return the standard output of a command.

    Args:
        message: text for its standard input.

    Raises:
        ToolError: there is no such program, or it failed; its last lines are in the message.
    """
    words = [str(word) for word in command]
    try:
        process = subprocess.run(
            words,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            input=message,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    except FileNotFoundError as error:
        raise ToolError(f"there is no {words[0]}; see the head of tests/boards/root.py") from error
    if process.returncode:
        output = (process.stdout + process.stderr).strip().splitlines()
        output = [line for line in output if not line.startswith("WARNING:")] or output
        raise ToolError(f"{words[0]} failed: " + "\n  ".join(output[-12:]))
    return process.stdout
