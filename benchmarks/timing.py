"""Measure levels of logic, loads and logic delay of the accelerator's parts, each synthesized by itself."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict

from edgedec.sim.synthesis.estimate_parts import CONFIGS, Parts
from edgedec.sim.synthesis.netlist_levels import MOST_LEVELS, MOST_LOADS
from edgedec.sim.synthesis.timing import Timing, measure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", choices=CONFIGS, default="kv260", help="kv260: W = 64, S = 8, the default")
    parser.add_argument("--parts", nargs="+", metavar="PATH", help="parts to measure; all by default")
    parser.add_argument("--list", action="store_true", help="list the parts")
    parser.add_argument("--json", action="store_true", help="write JSON")
    options = parser.parse_args()
    parts = Parts(CONFIGS[options.config].config)
    if options.list:
        print("\n".join(parts.paths))
        return 0
    paths = options.parts or parts.paths
    for path in paths:
        if path not in parts.paths:
            parser.error(f"{path} is no part; --list lists them")
    results: dict[str, list[Timing]] = {}
    for path in paths:
        began = time.perf_counter()
        results[path] = [measure(design) for design in parts.designs(path)]
        if not options.json:
            _show(path, results[path], time.perf_counter() - began)
    if options.json:
        json.dump({path: [asdict(one) for one in timings] for path, timings in results.items()}, sys.stdout, indent=1)
        print()
    return 0


def _show(path: str, timings: list[Timing], seconds: float) -> None:
    timing = max(timings, key=lambda one: one.levels.worst)
    levels = timing.levels
    excess = sum(one.levels.excess for one in timings)
    print(
        f"{path}: {levels.worst:.1f} levels, {excess} of {sum(one.levels.endpoints for one in timings)} endpoints above "
        f"{MOST_LEVELS:g}, sta {timing.sta_ns:.2f} ns ({seconds:.0f} s)"
    )
    for one in levels.paths:
        through = f"  through {', '.join(one.through)}" if one.through else ""
        print(f"  {one.levels:4.1f}  {one.start} -> {one.end}  [{one.cells}]{through}")
    for title, member in (("registers", "register_loads"), ("other nets", "net_loads")):
        loads = sorted((load for one in timings for load in getattr(one.levels, member)), key=lambda load: -load.loads)
        listed = ", ".join(f"{load.name} {load.loads}{' !' if load.loads > MOST_LOADS else ''}" for load in loads[:10])
        print(f"  loads of {title}: {listed}")


if __name__ == "__main__":
    sys.exit(main())
