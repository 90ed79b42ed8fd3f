"""The number of threads of a run that names none."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

__all__ = ["physical_cores"]


@cache
def physical_cores() -> int:
    """Return the number of cores that this process may use. Hyper-threads of a core count once."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in cpus:
        try:
            cores.add(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            return len(cpus)
    return len(cores)
