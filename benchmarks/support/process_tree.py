"""Run a command and measure the time and the resident memory of all processes that it starts.

The memory of a process is the kernel's own high-water mark (``VmHWM``), which sampling can only miss at the very end of a
process. The marks are added up, although the processes need not reach them at the same time and share their libraries.
The sum is therefore an upper bound of the command's memory at any moment, libraries included. Linux only.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedec.errors import DeviceError

__all__ = ["TreeRun", "run_tree"]

_INTERVAL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class TreeRun:
    """Figures of a command.

    Members:
        seconds: elapsed time.
        cpu_seconds: user and system time of all processes.
        peak_bytes: sum of the marks of all processes.
        main_bytes: mark of the first process.
        processes: number of processes that were observed.
        output: text that the command wrote to stdout.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    main_bytes: int
    processes: int
    output: str


def _children(process: int) -> list[int]:
    children = []
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            children += [int(child) for child in (task / "children").read_text().split()]
    except OSError:  # the process has ended
        pass
    return children


def _mark(process: int) -> int:
    """Return the mark of a process in bytes; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


class _Watch:
    """Collects the marks of a process and its descendants until it is stopped."""

    def __init__(self, root: int) -> None:
        self.marks: dict[int, int] = {}
        self._root, self._ended = root, threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-tree", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            waiting = [self._root]
            while waiting:
                process = waiting.pop()
                waiting += _children(process)
                # The latest mark counts, because before its exec a child has the mark of the process that forked it.
                self.marks[process] = _mark(process) or self.marks.get(process, 0)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


def run_tree(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> TreeRun:
    """Run a command to its end.

    Raises:
        DeviceError: it failed; the message has the last line of its stderr.
    """
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    )
    watch = _Watch(process.pid)
    errors: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    listener = threading.Thread(target=lambda: errors.append(process.stderr.read()), daemon=True)  # type: ignore[union-attr]
    listener.start()
    try:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        watch.stop()
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    listener.join()
    if process.returncode:
        lines = "".join(errors).strip().splitlines()
        raise DeviceError(f"{' '.join(command[:4])} ... failed: {lines[-1] if lines else 'it said nothing'}")
    own = watch.marks.get(process.pid, 0)  # not wait4's, which includes the memory of this process at the fork
    others = sum(mark for number, mark in watch.marks.items() if number != process.pid)
    return TreeRun(
        seconds=seconds,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_bytes=own + others,
        main_bytes=own,
        processes=len(watch.marks),
        output=output,
    )
