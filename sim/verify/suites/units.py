"""Suite ``units``: run matrices and attention, with their shared multipliers, under gaps and stalls in Verilator."""

from __future__ import annotations

from pathlib import Path

from edgedec.progress import Progress
from edgedec.sim.verify.coverage import LEFT_OUT, measure
from edgedec.sim.verify.suite import SuiteReport

__all__ = ["run"]

_BENCHES = ("engine", "attention")


def run(*, model: Path, quick: bool, progress: Progress) -> SuiteReport:
    """Run the suite.

    Raises:
        EdgedecError: a bench failed; the message contains its log.
    """
    coverage = measure(quick=quick, benches=_BENCHES, progress=progress)
    return SuiteReport(
        what="matrix path and attention path against the integer profile: idle x back-pressure x sizes",
        compared={"designs": len(_BENCHES)},
        coverage=coverage,
        left_out=LEFT_OUT if quick else "",
    )
