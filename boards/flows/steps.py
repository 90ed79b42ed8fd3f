"""Run a script of a maker's tools that says which step it is in, as processes that end with us."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgedec.boards.flows.interface import Built
from edgedec.errors import EdgedecError
from edgedec.progress import Progress, silent

__all__ = ["ScriptResult", "build_by_steps", "run_steps"]

_STEP = re.compile(r"^edgedec: step (\d+) of (\d+): (.*)$")
_ERROR = re.compile(r"^(ERROR:|edgedec: (?!step ))")
_PREPARING = re.compile(r"^Preparing to run (\S+)\.")  # a package of YoWASP, once
_SHOWN_ERRORS = 3
_PATIENCE_S = 30


@dataclass(frozen=True, kw_only=True)
class ScriptResult:
    """Result of a script.

    Members:
        status: exit status of the process.
        step: name of the last step that it reported.
        errors: lines that it reported as errors.
    """

    status: int
    step: str
    errors: Sequence[str]

    @property
    def said(self) -> str:
        return "; ".join(self.errors[:_SHOWN_ERRORS]) or f"it ended with status {self.status} and said nothing"


def build_by_steps(
    words: Sequence[str],
    folder: Path,
    results: Callable[[], Built | None],
    *,
    who: str,
    log: str,
    again: str,
    progress: Progress = silent,
) -> Built:
    """Run a script by ``run_steps``, and return its results.

    Args:
        results: a function that reads the results.
        who: name of the tools in the message of a failure.
        log: the file or folder that says why.
        again: the next step of a person after a failure.

    Raises:
        EdgedecError: it failed; names the step, what it said, and the log.
    """
    ran = run_steps(words, folder, progress=progress)
    built = None if ran.status else results()
    if built is None:
        raise EdgedecError(
            f"{who} failed in the step {ran.step or 'of its start'}: {ran.said}; see {folder / log}. To go on{again}"
        )
    return built


def run_steps(words: Sequence[str], folder: Path, *, progress: Progress = silent) -> ScriptResult:
    """Run a script in a process group of its own, which ends as a whole if this process is interrupted. Inheritable
    descriptors, such as the lock of the folder, are passed to it.

    Raises:
        OSError: it cannot be started.
    """
    with subprocess.Popen(
        words,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        close_fds=False,
    ) as process:
        try:
            step, errors = _follow(process, progress)
            status = process.wait()
        except BaseException:
            _end(process)
            raise
    return ScriptResult(status=status, step=step, errors=errors)


def _follow(process: subprocess.Popen[str], progress: Progress) -> tuple[str, list[str]]:
    """Passes its steps on; gives the last one and what went wrong."""
    step, errors, done, total = "", list[str](), 0, 1
    assert process.stdout is not None
    for line in process.stdout:
        if match := _STEP.match(line):
            step, done, total = match[3].strip(), int(match[1]) - 1, int(match[2])
            progress(step, done, total)
        elif match := _PREPARING.match(line):
            progress(f"{step}; {match[1]} is prepared, once, for half a minute", done, total)
        elif _ERROR.match(line):
            errors.append(" ".join(line.split()))
    return step, errors


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S)
            return
