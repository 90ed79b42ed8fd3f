"""Suite ``memory``: compare the DDR model with published measurements."""

from __future__ import annotations

from pathlib import Path

from edgedec.errors import EdgedecError
from edgedec.progress import Progress
from edgedec.sim.ddr.calibration import table
from edgedec.sim.verify.suite import SuiteReport

__all__ = ["run"]

_LIMIT = 0.03  # largest relative difference


def run(*, model: Path, quick: bool, progress: Progress) -> SuiteReport:
    """Run the suite.

    Raises:
        EdgedecError: a figure differs by more than 3 %.
    """
    progress("memory", 0, 1)
    rows = table()
    for name, measured, modelled in rows:
        if abs(modelled / measured - 1) > _LIMIT:
            raise EdgedecError(
                f"{name}: the model gives {modelled / 1e9:.2f} GB/s, but {measured / 1e9:.2f} were measured"
            )
    progress("memory", 1, 1)
    return SuiteReport(
        what=f"bandwidth of the DDR model against published measurements of the KV260: within {_LIMIT:.0%}",
        compared={"bandwidths": len(rows)},
        figures={
            name: f"{modelled / 1e9:.2f} GB/s (measured {measured / 1e9:.2f})" for name, measured, modelled in rows
        },
    )
