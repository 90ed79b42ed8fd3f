"""How fast a bundle runs on this machine: passes of several sizes, prefill, and plain decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from edgedec.bundle import Bundle
from edgedec.plugins import load
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.protocols import Limits, Pass, State, Target
from edgedec.runtime.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target

__all__ = ["PASS_SIZES", "BenchResult", "bench", "physical_cores"]

PASS_SIZES = (1, 2, 4, 8, 16, 32)
PAST_ROWS = 64
PREFILL_TOKENS = 128
DECODE_TOKENS = 24

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Medians. ``pass_ms``: rows of a pass over ``PAST_ROWS`` committed rows, with the logits of all rows -> milliseconds."""

    pass_ms: Mapping[int, float]
    prompt_per_second: float
    predicted_per_second: float


def physical_cores() -> int:
    """Cores that this process may use, hyper-threads of one counted once: what ONNX Runtime takes by default."""
    import os

    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in cpus:
        try:
            text = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        except OSError:
            return len(cpus)
        siblings.add(text)
    return max(1, len(siblings))
