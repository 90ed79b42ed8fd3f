"""Measure levels of logic, loads and logic delay of the accelerator's parts, each synthesized by itself.

    .venv/bin/python -m benchmarks.accelerator.timing                              # all parts of W = 64, S = 8: half an hour
    .venv/bin/python -m benchmarks.accelerator.timing --parts router datapath.gate # some parts, with their ten worst paths
    .venv/bin/python -m benchmarks.accelerator.timing --config tiny --parts datapath.matrix.engine
    .venv/bin/python -m benchmarks.accelerator.timing --placed --parts router # the clock after placing in an ECP5 as well
    .venv/bin/python -m benchmarks.accelerator.timing --write-docs            # update the table and docs/reports/timing.md

--write-docs measures the parts of the default configuration, and those that an option makes in the configurations of other
models, whose RTLIL differs from the table's. A figure that became
worse is refused; --accept REASON takes it up to its gate and keeps the reason. With --placed it places them, too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict

from benchmarks.accelerator import timing_table as table
from benchmarks.support.docs_tables import write_blocks
from edgedec.board import FAMILIES
from edgedec.errors import EdgedecError
from edgedec.sim.synthesis.estimate_parts import CONFIGS, Parts
from edgedec.sim.synthesis.netlist_levels import MOST_LEVELS, MOST_LOADS
from edgedec.sim.synthesis.placing import Placement, place
from edgedec.sim.synthesis.timing import Timing, measure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=CONFIGS, default="kv260", help="kv260: W = 64, S = 8, the default")
    parser.add_argument("--parts", nargs="+", metavar="PATH", help="parts to measure; all by default")
    parser.add_argument("--placed", action="store_true", help="also place each part in an ECP5")
    parser.add_argument("--list", action="store_true", help="list the parts")
    parser.add_argument("--json", action="store_true", help="write JSON")
    parser.add_argument("--write-docs", action="store_true", help="update the table and the page")
    parser.add_argument("--accept", metavar="REASON", default="", help="why a figure may become worse, up to its gate")
    options = parser.parse_args()
    parts = Parts(CONFIGS[options.config].config, FAMILIES["zynq-7000"])
    if options.list:
        print("\n".join(parts.paths))
        return 0
    paths = tuple(options.parts or parts.paths)
    for path in paths:
        if path not in parts.paths:
            parser.error(f"{path} is no part; --list lists them")
    if options.write_docs:
        if options.config != "kv260":
            parser.error("--write-docs writes the figures of the default configuration")
        return _update(paths, placed=options.placed, accept=options.accept)
    on_ecp5 = Parts(CONFIGS[options.config].config, FAMILIES["ecp5"])
    results = {}
    for path in paths:
        began = time.perf_counter()
        timings = [measure(design) for design in parts.designs(path)]
        placements = [place(design) for design in on_ecp5.designs(path)] if options.placed else []
        results[path] = {"timing": [asdict(one) for one in timings], "placed": [asdict(one) for one in placements]}
        if not options.json:
            _show(path, timings, placements, time.perf_counter() - began)
    if options.json:
        json.dump(results, sys.stdout, indent=1)
        print()
    return 0


def _update(paths: tuple[str, ...], *, placed: bool, accept: str) -> int:
    """Measure the parts that changed, keep their rows, and write the page. Return the exit status."""
    kept = table.load()
    refused = 0
    default = table.parts()
    jobs = [("levels", path, path, default, table.measured_row) for path in paths]
    if placed:
        jobs += [("placed", path, path, table.parts("ecp5"), table.placed_row) for path in paths]
    order = {kind: list(default.paths) for kind in ("levels", "placed")} | {"options": []}
    for case, config in table.cases().items():
        of_case, made = Parts(config, FAMILIES["zynq-7000"]), table.option_parts(config)
        order["options"] += [f"{case} {path}" for path in made]
        wanted = [path for path in made if path in paths or path not in default.paths]
        jobs += [("options", f"{case} {path}", path, of_case, table.measured_row) for path in wanted]
    for kind, name, path, parts, row_of in jobs:
        before = kept[kind].get(name)
        if before is not None and before["hash"] == table.part_hash(path, parts):
            continue
        try:
            row = row_of(path, parts)
            kept[kind][name] = row if kind == "placed" else table.check(name, before, row, accept=accept)
        except EdgedecError as error:
            print(f"{name}: {error}", file=sys.stderr)
            refused = 1
            continue
        print(f"{name}: {kept[kind][name]}", flush=True)
        kept[kind] = {one: kept[kind][one] for one in order[kind] if one in kept[kind]}
        table.save(kept)
    table.save({kind: {one: kept[kind][one] for one in order[kind] if one in kept[kind]} for kind in kept})
    for page in write_blocks(table.tables()):
        print(f"wrote {page}")
    return refused


def _show(path: str, timings: list[Timing], placements: list[Placement], seconds: float) -> None:
    timing = max(timings, key=lambda one: one.levels.worst)
    excess, endpoints = (sum(getattr(one.levels, name) for one in timings) for name in ("excess", "endpoints"))
    print(
        f"{path}: {timing.levels.worst:.1f} levels, {excess} of {endpoints} endpoints above {MOST_LEVELS:g}, "
        f"sta {max(one.sta_ns for one in timings):.2f} ns ({seconds:.0f} s)"
    )
    for placement in placements:
        print(f"  placed in an ECP5: {placement.note if placement.mhz is None else f'{placement.mhz:.1f} MHz'}")
    for one in timing.levels.paths:
        through = f"  through {', '.join(one.through)}" if one.through else ""
        print(f"  {one.levels:4.1f}  {one.start} -> {one.end}  [{one.cells}]{through}")
    for title, member in (("registers", "register_loads"), ("other nets", "net_loads")):
        loads = sorted((load for one in timings for load in getattr(one.levels, member)), key=lambda load: -load.loads)
        listed = ", ".join(f"{load.name} {load.loads}{' !' if load.loads > MOST_LOADS else ''}" for load in loads[:10])
        print(f"  loads of {title}: {listed}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
