"""Coverage of the cocotb benches: kind of descriptor x size x kind of stall, and the cells that no bench hit.

    python -m edgedec.sim.verify.coverage [--quick] [--json FILE]

A bench counts a cell after a descriptor met the stall and its output was compared, or, for errors and resets, after the
expected event happened.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from edgedec.errors import UsageError
from edgedec.progress import Progress, silent

__all__ = ["BENCHES", "CELLS", "ENVIRONMENT", "LEFT_OUT", "Cell", "Coverage", "beats_class", "main", "measure"]

ENVIRONMENT = "COVERAGE_FOLDER"  # variable with the folder that benches write to; without it, they write nothing

Cell = tuple[str, str, str, str]  # bench, kind, size, stall
_Kinds = Mapping[str, tuple[Sequence[str], Sequence[str]]]  # kind -> sizes, stalls

# Stalls of reads: an address waits for its port, a beat arrives late, the receiver is not ready for a beat.
# Some reads are never held: benches/held.py computes which, and a bench that holds one back nevertheless fails.
_READ = ("none", "address", "late", "held", "error", "reset")
_TAKEN = tuple(stall for stall in _READ if stall != "held")
_WRITTEN = ("write", "write error")
_FEW, _MANY, _PAGES = "1-15", "16-", "page"  # sizes in beats; page: the range crosses a 4 KiB boundary
_TILES = ("part", "tile", "tiles")
_COMMITTED = ("0", "1-15", "16-")

# Cells that are possible for an accelerator of the workloads' configuration.
CELLS: Mapping[str, _Kinds] = {
    "top": {
        "READ PROGRAM": ((_MANY,), _TAKEN),
        "READ LOAD": ((_FEW, _MANY), _TAKEN),
        "READ ANGLES": ((_FEW,), _TAKEN),
        "READ GAINS": ((_FEW,), _READ),
        "READ WEIGHTS": ((_FEW, _MANY, _PAGES), _READ),
        "READ ROWS": ((_FEW, _MANY, _PAGES), _READ),
        "READ CODING": ((_FEW, _MANY), _READ),
        "READ FACTORS": ((_FEW,), _READ),
        "READ SCALES": ((_FEW,), _READ),
        "CACHE": ((_FEW, _MANY, _PAGES), _READ),
        "COPY": ((_FEW, _PAGES), (*_TAKEN, *_WRITTEN)),
        "LOAD": (("1-3", "4-"), _TAKEN),
        "VECTOR normed": (("1", "2-"), _READ),
        "VECTOR plain": (("1", "2-"), _READ),
        "MATRIX ternary": (_TILES, _READ),
        "MATRIX planes": (("part", "tile"), _READ),
        "MATRIX int8": (("part", "tile"), _READ),
        "MATRIX logits": (_TILES, (*_READ, *_WRITTEN)),
        "ATTEND": (_COMMITTED, (*_READ, *_WRITTEN)),
    },
    # lent: the multipliers of int8 are lent to attention. output: the receiver is not ready for a word.
    "engine": {
        "MATRIX ternary": (_TILES, ("none", "late", "held", "output")),
        "MATRIX planes": (("part", "tile"), ("none", "late", "held", "output")),
        "MATRIX int8": (("part", "tile"), ("none", "late", "held", "output", "lent")),
    },
    # rows: the receiver is not ready for new keys or values. Without committed positions there are no beats to delay.
    "attention": {
        "ATTEND alone": (_COMMITTED[:1], ("none", "output", "rows")),
        "ATTEND": (_COMMITTED[1:], ("none", "late", "held", "output", "rows")),
    },
}
BENCHES = tuple(CELLS)
# Description of what ``quick`` leaves out.
LEFT_OUT = "all models but the smallest, and with them larger matrices, other weights, ranges across pages"


def _all_cells(benches: Sequence[str] = BENCHES) -> Iterator[Cell]:
    for bench in benches:
        for kind, (sizes, stalls) in CELLS[bench].items():
            for size in sizes:
                for stall in stalls:
                    yield bench, kind, size, stall


def beats_class(start: int, beats: int, beat_bytes: int) -> str:
    """Return the size class, a name in ``CELLS``, of a range of beats that begins at byte address ``start``."""
    if start // 4096 != (start + beats * beat_bytes - 1) // 4096:
        return _PAGES
    return _FEW if beats < 16 else _MANY


@dataclass(frozen=True)
class Coverage:
    """The cells that benches hit.

    Members:
        hits: number of hits of each cell; cells without hits are absent.
        benches: names of the benches.
    """

    hits: Counter[Cell] = field(default_factory=Counter)
    benches: Sequence[str] = BENCHES

    def hit(self, bench: str, kind: str, size: str, stall: str) -> None:
        """Count a hit of a cell.

        Raises:
            UsageError: the cell does not exist.
        """
        sizes, stalls = CELLS.get(bench, {}).get(kind, ((), ()))
        if size not in sizes or stall not in stalls:
            raise UsageError(
                f"coverage has no cell {bench}, {kind}, {size}, {stall}; add it to CELLS of edgedec/sim/verify/coverage.py"
            )
        self.hits[bench, kind, size, stall] += 1

    @property
    def cells(self) -> int:
        """Number of cells."""
        return sum(1 for _ in _all_cells(self.benches))

    @property
    def missed(self) -> list[Cell]:
        """Cells that were never hit."""
        return [cell for cell in _all_cells(self.benches) if cell not in self.hits]

    def as_json(self) -> dict[str, Any]:
        """{cells, hit, missed [[bench, kind, size, stall]], hits [[bench, kind, size, stall, times]]}."""
        missed = self.missed
        return {
            "cells": self.cells,
            "hit": self.cells - len(missed),
            "missed": [list(cell) for cell in missed],
            "hits": [[*cell, times] for cell, times in sorted(self.hits.items())],
        }

    def table(self) -> str:
        """Return a table with a line for each kind and size, and a column for each stall; a dot: there is no such cell."""
        lines = []
        for bench in self.benches:
            kinds = CELLS[bench]
            columns = list(dict.fromkeys(stall for _, stalls in kinds.values() for stall in stalls))
            lines += ["", self._row(bench, "", columns, columns)]
            for kind, (sizes, stalls) in kinds.items():
                for size in sizes:
                    counts = [self.hits[bench, kind, size, each] if each in stalls else "." for each in columns]
                    lines.append(self._row(kind, size, counts, columns))
        missed = self.missed
        lines += ["", f"{self.cells - len(missed)} of {self.cells} cells were hit. Never:"]
        lines += [f"  {line}" for line in self._missed_lines(missed)] or ["  none"]
        return "\n".join(lines[1:])

    @staticmethod
    def _row(kind: str, size: str, counts: Sequence[object], columns: Sequence[str]) -> str:
        widths = [max(6, len(column) + 2) for column in columns]
        cells = (f"{count:>{width}}" for count, width in zip(counts, widths, strict=True))
        return f"{kind:16}{size:>7}" + "".join(cells)

    @staticmethod
    def _missed_lines(missed: Sequence[Cell]) -> Iterator[str]:
        """Yield a line for each kind and size with its missed stalls."""
        stalls: dict[tuple[str, str, str], list[str]] = {}
        for *of, stall in missed:
            bench, kind, size = of
            stalls.setdefault((bench, kind, size), []).append(stall)
        for (bench, kind, size), lacking in stalls.items():
            nothing = len(lacking) == len(CELLS[bench][kind][1])
            yield f"{bench}: {kind}, {size}: {'anything' if nothing else ', '.join(lacking)}"

    def save(self) -> None:
        """Save the hits in the folder of ``ENVIRONMENT``, if it is set. A bench calls this after each test that passed."""
        if folder := os.environ.get(ENVIRONMENT):
            path = Path(folder) / f"{uuid.uuid4().hex}.json"
            path.write_text(json.dumps([[*cell, times] for cell, times in self.hits.items()]), "utf-8")

    @staticmethod
    def load(folder: Path, benches: Sequence[str] = BENCHES) -> Coverage:
        """Return the sum of everything that these benches saved in a folder.

        Raises:
            UsageError: a file is damaged, or has unknown cells.
        """
        known, coverage = set(_all_cells(benches)), Coverage(benches=benches)
        for path in sorted(folder.glob("*.json")):
            try:
                for *cell, times in json.loads(path.read_text("utf-8")):
                    if tuple(cell) not in known:
                        raise ValueError(f"no cell {cell}")
                    coverage.hits[tuple(cell)] += int(times)
            except (ValueError, TypeError) as error:
                raise UsageError(f"{path} is not a coverage file: {error}; delete it") from error
        return coverage


def measure(*, quick: bool = False, benches: Sequence[str] = BENCHES, progress: Progress = silent) -> Coverage:
    """Run benches and return their coverage. The first run builds their simulators, which takes minutes.

    Args:
        quick: use only the smallest model, without the sizes that the others have.

    Raises:
        ToolError: a tool is missing or fails.
        EdgedecError: a test of a bench failed.
        UsageError: a bench is unknown.
    """
    from edgedec.sim.verify.benches.designs import design
    from edgedec.sim.verify.cocotb_runner import run_bench

    for bench in benches:
        if bench not in CELLS:
            raise UsageError(f"bench must be one of {', '.join(BENCHES)}, not {bench!r}")
    with tempfile.TemporaryDirectory(prefix="edgedec-coverage-") as folder:
        for bench in benches:
            progress(f"bench {bench}", 0, 1)
            parameters = {ENVIRONMENT.lower(): folder, "quick": int(quick)}
            run_bench(design(bench), f"edgedec.sim.verify.benches.{bench}", parameters=parameters, progress=progress)
        return Coverage.load(Path(folder), benches)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benches, print the table, and write JSON if requested. Return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m edgedec.sim.verify.coverage", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="use only the smallest model")
    parser.add_argument("--json", type=Path, help="write the report as JSON to this file")
    parser.add_argument("--bench", action="append", choices=BENCHES, help="run only this bench; may be repeated")
    options = parser.parse_args(arguments)
    printed: set[str] = set()

    def progress(what: str, done: int, total: int) -> None:
        if what not in printed:
            printed.add(what)
            _print(f"{what} ...", sys.stderr)

    coverage = measure(quick=options.quick, benches=options.bench or BENCHES, progress=progress)
    _print(coverage.table(), sys.stdout)
    if options.json is not None:
        options.json.write_text(json.dumps(coverage.as_json(), indent=1) + "\n", "utf-8")
    return 0


def _print(text: str, file: TextIO) -> None:
    file.write(text + "\n")
    file.flush()


if __name__ == "__main__":
    sys.exit(main())
