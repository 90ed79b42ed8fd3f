"""A command and all processes that it starts: how long it took and how much memory they had resident.

Of each process the kernel's own high-water mark counts (``VmHWM``), which no sampling can miss but at a process' very end;
the marks are added up, although the processes need not have reached them at the same time and share their libraries. So the
sum is an upper bound of what the command takes at any moment, libraries included. Linux only.
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
    """Members:
    seconds: on the clock. cpu_seconds: of all processes, user and system.
    peak_bytes: the sum of all processes' marks. main_bytes: the first one's own. processes: how many were seen.
    output: what it wrote to stdout.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    main_bytes: int
    processes: int
    output: str


def _children(process: int) -> list[int]:
    found = []
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    except OSError:  # it has ended
        pass
    return found


def _mark(process: int) -> int:
    """Bytes; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


class _Watch:
    """Marks of a process and its descendants, until stopped."""

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
                # The last one: before a child's exec it is the mark of the process that it was forked from.
                self.marks[process] = _mark(process) or self.marks.get(process, 0)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


def run_tree(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> TreeRun:
    """Run a command to its end.

    Raises:
        DeviceError: it failed; has its last words.
    """
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    )
    watch = _Watch(process.pid)
    said: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    listener = threading.Thread(target=lambda: said.append(process.stderr.read()), daemon=True)  # type: ignore[union-attr]
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
        words = "".join(said).strip().splitlines()
        raise DeviceError(f"{' '.join(command[:4])} ... failed: {words[-1] if words else 'it said nothing'}")
    own = watch.marks.get(process.pid, 0)  # not wait4's: that begins with what this process had when it forked
    others = sum(mark for number, mark in watch.marks.items() if number != process.pid)
    return TreeRun(
        seconds=seconds,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_bytes=own + others,
        main_bytes=own,
        processes=len(watch.marks),
        output=output,
    )
