"""A control group of Linux with a memory limit, made for a benchmark and removed after it. This needs root.

Version 2 is used if its top has the memory controller, otherwise version 1.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from edgedec.errors import DeviceError
from edgedec.memory.cgroups import read_count

__all__ = ["MemoryGroup"]

_TOPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_VERSION_1 = Path("/sys/fs/cgroup/memory")
_REMOVAL_S = 5.0  # seconds in which the kernel forgets the processes of a group that have ended


class MemoryGroup:
    """A group. Use it as a context manager, which removes it; its processes must have ended by then.

    Parameters:
        name: name of its folder.
        limit_bytes: its limit.

    Members:
        folder: its folder.
        version: 1 or 2.

    Raises:
        DeviceError: no group can be made here.
    """

    def __init__(self, name: str, limit_bytes: int) -> None:
        top = next((top for top in _TOPS if "memory" in _words(top / "cgroup.controllers")), None)
        self.version = 1 if top is None else 2
        self.folder = (top or _VERSION_1) / name
        try:
            if top is not None:
                (top / "cgroup.subtree_control").write_text("+memory")
            self.folder.mkdir()
            limit = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
            (self.folder / limit).write_text(str(limit_bytes))
        except OSError as error:
            raise DeviceError(
                f"no control group can be made at {self.folder}: {error.strerror}; run as root"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = time.monotonic() + _REMOVAL_S
        while True:
            try:
                self.folder.rmdir()
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def join(self) -> Callable[[], None]:
        """Return a function for ``preexec_fn`` that moves the new process into the group."""
        file = self.folder / "cgroup.procs"

        def move() -> None:
            file.write_text(str(os.getpid()))

        return move

    @property
    def oom_kills(self) -> int:
        """Number of processes of the group that the kernel has killed for want of memory."""
        file = self.folder / ("memory.oom_control" if self.version == 1 else "memory.events")
        counts = dict(line.split(" ", 1) for line in file.read_text().splitlines())
        return int(counts["oom_kill"])

    @property
    def peak_bytes(self) -> int:
        """Largest memory of the group so far, page cache included; 0 if the kernel does not say."""
        return read_count(self.folder / ("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak")) or 0


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
