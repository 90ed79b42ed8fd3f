"""Suite ``top``: run the whole accelerator with tiny programs against cocotb's bus models in Verilator."""

from __future__ import annotations

from pathlib import Path

from edgedec.progress import Progress
from edgedec.sim.verify.coverage import LEFT_OUT, measure
from edgedec.sim.verify.suite import SuiteReport

__all__ = ["run"]


def run(*, model: Path, quick: bool, progress: Progress) -> SuiteReport:
    """Run the suite.

    Raises:
        EdgedecError: the bench failed; the message contains its log.
    """
    coverage = measure(quick=quick, benches=("top",), progress=progress)
    return SuiteReport(
        what="passes, commits, faults and soft resets under gaps and stalls: results and cache = interpreter of the program",
        compared={"designs": 1},
        coverage=coverage,
        left_out=LEFT_OUT if quick else "",
    )
