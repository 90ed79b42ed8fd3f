"""Write a short plain text in a process of its own, and print its speed and its memory as JSON on stdout.

    .venv/bin/python -m benchmarks.memory.above_memory_child '{"bundle": "...", "budget_bytes": 125000000, "ctx_size": 640}'

With a budget, weights above it are streamed. Without one, all of them are loaded as usual: EDGEDEC_HUGE_PAGES=0 lets them be
mapped, so that a control group's limit makes the system drop pages and read them again.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from edgedec.memory.meter import resident_bytes
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import target_module

__all__ = ["AboveMemoryRun", "run"]

PROMPT = "Once upon a time"


@dataclass(frozen=True, kw_only=True)
class AboveMemoryRun:
    """Settings of a run; ``budget_bytes`` None: all weights are loaded."""

    bundle: str
    budget_bytes: int | None
    ctx_size: int
    threads: int
    tokens: int


def run(settings: AboveMemoryRun) -> dict[str, Any]:
    """Write a text of that many tokens.

    Raises:
        EdgedecError: see ``Session.open``.
    """
    target_module("cpu")
    resident = resident_bytes()
    with Session.open(
        settings.bundle,
        threads=settings.threads,
        ctx_size=settings.ctx_size,
        kv_bits=8,
        budget_bytes=settings.budget_bytes,
    ) as session:
        answer = session.generate(PROMPT, n_predict=settings.tokens, sampling=SamplingConfig(temperature=0))
        return {
            "tok_s": answer.timings.predicted_per_second,
            "tokens": answer.tokens,
            "resident_bytes": resident,
            "peak_bytes": session.meter.peak_bytes,
        }


if __name__ == "__main__":
    print(json.dumps(run(AboveMemoryRun(**json.loads(sys.argv[1])))))
