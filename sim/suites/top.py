"""The whole accelerator, with a tiny program, against cocotb's bus models in Verilator."""

from __future__ import annotations

from pathlib import Path

from edgedec.progress import Progress
from edgedec.sim.benches.designs import design
from edgedec.sim.cocotb_runner import run_bench
from edgedec.sim.suite import SuiteReport

__all__ = ["run"]


def run(*, model: Path, quick: bool, progress: Progress) -> SuiteReport:
    """Raises EdgedecError with the end of the bench's log if it fails."""
    progress("top", 0, 1)
    run_bench(design("top"), "edgedec.sim.benches.top", parameters={"quick": int(quick)})
    progress("top", 1, 1)
    return SuiteReport(
        what="passes, commits, faults and soft resets under gaps and stalls: results and cache = interpreter of the program",
        compared={"designs": 1},
    )
