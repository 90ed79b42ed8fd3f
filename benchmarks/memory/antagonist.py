"""Take memory in waves until the control group of this process is nearly full, and give it back, again and again.

    .venv/bin/python -m benchmarks.memory.antagonist '{"least_room": 8388608, "seed": 1}'

A wave takes memory until ``least_room`` bytes are left in the group, which ``room_now`` reads: the limit less what is used,
without clean page cache. It then stays for some seconds, in which it also takes what others give back, and ends at once. A
process that is killed for want of memory is this one or another one of the group; the caller counts the kills. SIGTERM ends
it. It prints the bytes that it holds whenever they have changed by an eighth.
"""

from __future__ import annotations

import json
import mmap
import random
import sys
import time

from edgedec.memory.cgroups import cgroup_limits

__all__ = ["room_now"]

_PART_BYTES = 1 << 20
_STEP_S = 0.05  # seconds between parts: 20 MiB a second
_HIGH_S, _LOW_S = (4.0, 25.0), (4.0, 75.0)  # shortest and longest time with memory taken, and without


def room_now() -> int:
    """Return the bytes that the groups of this process have left, 0 at least.

    Raises:
        ValueError: no group has a limit.
    """
    return min(max(0, limit.limit_bytes - limit.used_bytes) for limit in cgroup_limits())


def _wave(least_room: int, seconds: float) -> None:
    parts: list[mmap.mmap] = []
    end, printed = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        if room_now() >= least_room + _PART_BYTES:
            part = mmap.mmap(-1, _PART_BYTES)
            for at in range(0, _PART_BYTES, mmap.PAGESIZE):
                part[at] = 1  # a page that is not written to takes no memory
            parts.append(part)
        held = len(parts) * _PART_BYTES
        if held > printed * 9 // 8:
            print(held, flush=True)
            printed = held
        time.sleep(_STEP_S)
    for part in parts:
        part.close()
    print(0, flush=True)


def _main(least_room: int, seed: int) -> None:
    draw = random.Random(seed)
    while True:
        time.sleep(draw.uniform(*_LOW_S))
        _wave(least_room, draw.uniform(*_HIGH_S))


if __name__ == "__main__":
    _main(**json.loads(sys.argv[1]))
