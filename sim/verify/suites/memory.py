"""Suite ``memory``: compare the DDR model with published measurements, fitted and predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edgedec.errors import EdgedecError
from edgedec.progress import Progress
from edgedec.sim.ddr.calibration import (
    FIGURES,
    GRID,
    PREDICTION_TOLERANCE,
    QUICK_GRID,
    TOLERANCE,
    candidates,
    predictions,
    rates,
    table,
)
from edgedec.sim.verify.suite import SuiteReport

__all__ = ["run"]

_EACH = tuple((number,) for number in range(len(FIGURES)))


def run(*, model: Path, quick: bool, progress: Progress) -> SuiteReport:
    """Run the suite. With ``quick`` the parameters are chosen among fewer candidates.

    Raises:
        EdgedecError: a figure differs by more than 3 % from the measurement to which the model was fitted, or by more than
            5 % if the parameters were chosen without it.
    """
    rows = table()
    for name, measured, modelled in rows:
        if abs(modelled / measured - 1) > TOLERANCE:
            raise EdgedecError(
                f"{name}: the model gives {modelled / 1e9:.2f} GB/s, but {measured / 1e9:.2f} were measured"
            )
    grid = QUICK_GRID if quick else GRID
    predicted = _predicted(grid, progress)
    for (name, _, _), error in zip(rows, predicted, strict=True):
        if abs(error) > PREDICTION_TOLERANCE:
            raise EdgedecError(f"{name}: predicted from the other measurements with an error of {error:+.1%}")
    shown = zip(rows, predicted, strict=True)
    return SuiteReport(
        what=(
            f"bandwidth of the DDR model against published measurements of the KV260: fitted within {TOLERANCE:.0%}, each "
            f"predicted from the others within {PREDICTION_TOLERANCE:.0%}"
        ),
        compared={"fitted bandwidths": len(rows), "predicted bandwidths": len(predicted)},
        figures={
            name: f"{modelled / 1e9:.2f} GB/s (measured {measured / 1e9:.2f}; predicted {error:+.1%})"
            for (name, measured, modelled), error in shown
        },
        kind="modelled",
        left_out=f"of {len(candidates())} candidates for the parameters all but {len(candidates(grid))}"
        if quick
        else "",
    )


def _predicted(grid: Mapping[str, Sequence[int]], progress: Progress) -> list[float]:
    """Return the error of each bandwidth that is predicted from the others."""
    sets = candidates(grid)
    modelled: list[tuple[float, ...]] = []
    with ThreadPoolExecutor(2) as pool:
        for done, row in enumerate(pool.map(rates, sets)):
            progress("memory", done, len(sets))
            modelled.append(row)
    progress("memory", len(sets), len(sets))
    return [one.errors[0] for one in predictions(modelled, _EACH)]
