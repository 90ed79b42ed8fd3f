"""Print the memory that a run of a bundle is charged, and the planned memory, as JSON on stdout.

    .venv/bin/python -m benchmarks.memory.charged BUNDLE THREADS [KV_BITS]

The run needs a process of its own. It fills the context with a prompt, a text, and a pass of all rows with the logits of
each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from edgedec.bundle.bundle import Bundle
from edgedec.memory.meter import MemoryMeter
from edgedec.memory.plan import phases
from edgedec.runtime.kernels.weights.layout_cache import charged_folders
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.targets import open_target, target_module

LIMITS = Limits(nodes=32, depth=8, positions=512)


def measure(path: Path, threads: int, kv_bits: int | None) -> dict[str, object]:
    """Return peak and planned bytes. ``planned_bytes`` does not include memory that is needed only for loading."""
    target_module("cpu")  # imports ONNX Runtime, which is part of the baseline and not charged to the model
    with MemoryMeter(charged_folders(path)) as meter:
        bundle = Bundle.open(path)
        target = open_target(bundle, limits=LIMITS, threads=threads, kv_bits=kv_bits)
        meter.mark()
        loaded = meter.peak_bytes
        state = target.open(LIMITS)
        while state.length < LIMITS.positions:
            left = LIMITS.positions - state.length
            rows = LIMITS.nodes if left > 2 * LIMITS.nodes or left == LIMITS.nodes else 1
            within = np.arange(rows, dtype=np.int32)
            ids = np.full(rows, 13, np.int32)
            work = Pass(ids=ids, positions=state.length + within, logits=within if left == rows else None)
            (result,) = target.submit([(state, work)]).result()
            state.commit(within)
            meter.mark()
        assert np.isfinite(result.logits).all()
    # The planner has an item for the Python objects of a bundle and its graph, which a target does not count.
    settings = RunSettings(threads=threads, ctx_size=LIMITS.positions, kv_bits=kv_bits)
    items = {**target.footprint(LIMITS), "host": make_plan(Bundle.open(path), settings).plan.items["host"]}
    planned = sum(phases(items)["run"].values())
    return {
        "available": meter.available,
        "peak_bytes": meter.peak_bytes,
        "loaded_bytes": loaded,
        "planned_bytes": planned,
        "ratio": meter.peak_bytes / planned,
        "items": items,
    }


if __name__ == "__main__":
    threads, kv_bits = int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None
    print(json.dumps(measure(Path(sys.argv[1]), threads, kv_bits)))
