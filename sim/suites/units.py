"""Matrices and attention, with the multipliers that they share, under gaps and stalls in Verilator."""

from __future__ import annotations

from pathlib import Path

from edgedec.progress import Progress
from edgedec.sim.benches.designs import design
from edgedec.sim.cocotb_runner import run_bench
from edgedec.sim.suite import SuiteReport

__all__ = ["run"]

_BENCHES = ("engine", "attention")


def run(*, model: Path, quick: bool, progress: Progress) -> SuiteReport:
    """Raises EdgedecError with the end of a bench's log if it fails."""
    for number, name in enumerate(_BENCHES):
        progress(name, number, len(_BENCHES))
        run_bench(design(name), f"edgedec.sim.benches.{name}", parameters={"quick": int(quick)})
    progress("units", len(_BENCHES), len(_BENCHES))
    return SuiteReport(
        what="matrix path and attention path against the integer profile: idle x back-pressure x sizes",
        compared={"designs": len(_BENCHES)},
    )
