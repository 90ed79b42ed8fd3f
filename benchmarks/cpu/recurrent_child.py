"""Run passes of one model in a process of its own, and print figures as JSON on stdout.

    .venv/bin/python -m benchmarks.cpu.recurrent_child BUNDLE '{"positions": 8192, "short": 0, "steps": 32}'

Without ``short``, one text fills its context, and the figures are the plan, the measured peak, and the bytes that the text
holds. With it, two texts make steps in turns, one up to ``short`` rows and one up to ``positions``, so that a load of the
machine meets both alike; the figures are the median seconds of a step of each.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from edgedec.bundle.bundle import Bundle
from edgedec.memory.heap import trim_heap
from edgedec.memory.meter import MemoryMeter
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.kernels.weights.layout_cache import charged_folders
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.protocols import Limits, Pass, State, Target
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.session.open_run import import_first_start
from edgedec.runtime.targets import open_target, target_module
from edgedec.runtime.targets._cpu import CpuTarget

__all__ = ["filled", "steps"]

_PASS_ROWS = 32
_TOKEN = 13


def _read(target: Target, state: State, rows: int) -> None:
    """Run ``rows`` more rows and commit them."""
    count = np.arange(rows, dtype=np.int32)
    work = Pass(ids=np.full(rows, _TOKEN, np.int32), positions=state.length + count)
    target.submit([(state, work)]).result()
    state.commit(count)


def _read_to(target: Target, state: State, length: int) -> None:
    while state.length < length:
        _read(target, state, min(_PASS_ROWS, length - state.length))


def filled(path: Path, positions: int) -> dict[str, Any]:
    """Fill a context. Return the items of the plan, the peak, and the bytes that the text holds at its end."""
    limits = Limits(nodes=_PASS_ROWS, depth=0, positions=positions)
    usable()  # the self-test, which a process makes once, is no part of these figures
    target_module("cpu")  # it imports ONNX Runtime, which is part of the baseline
    import_first_start()  # the bundle is new
    with MemoryMeter(charged_folders(path)) as meter:
        target = open_target(Bundle.open(path), device="cpu", limits=limits, threads=1, kv_bits=16)
        assert isinstance(target, CpuTarget)
        trim_heap()  # because loading has freed blocks, as in a session
        state = target.open(limits)
        _read_to(target, state, positions)
    # The planner has an item for the Python objects of a bundle and its graph, which a target does not count.
    host = make_plan(Bundle.open(path), RunSettings(threads=1, ctx_size=positions, kv_bits=16)).plan.items["host"]
    return {
        "items": {**target.footprint(limits), "host": host},
        "peak_bytes": meter.peak_bytes,
        "held_bytes": target.held_bytes(state),
    }


def steps(path: Path, short: int, positions: int, count: int) -> dict[str, float]:
    """Return the median seconds of the last ``count`` steps up to ``short`` rows, and up to ``positions`` rows."""
    limits = Limits(nodes=_PASS_ROWS, depth=0, positions=positions, cache_rows=positions + 2 * short)
    target = open_target(Bundle.open(path), device="cpu", limits=limits, threads=1, kv_bits=16)
    texts = [(name, target.open(limits), rows) for name, rows in (("short", short), ("long", positions))]
    for _, state, rows in texts:
        _read_to(target, state, rows - count)
    seconds: dict[str, list[float]] = {"short": [], "long": []}
    for _ in range(count):
        for name, state, _ in texts:
            began = time.perf_counter()
            _read(target, state, 1)
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    path, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    positions, short = options["positions"], options["short"]
    print(json.dumps(steps(path, short, positions, options["steps"]) if short else filled(path, positions)))


if __name__ == "__main__":
    main()
