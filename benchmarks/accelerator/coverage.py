"""Count the lines and bits of the accelerator's units that the benches of Amaranth's simulator reach.

    .venv/bin/python -m benchmarks.accelerator.coverage --units vector.requantizer blocks.divider   # some, with gaps
    .venv/bin/python -m benchmarks.accelerator.coverage --write-docs   # those that changed, and the page

For each unit its own benches run (``tests/hw/.../test_UNIT*.py``, the first two rings), and what they give it is recorded
cycle by cycle. Verilator replays it into the unit's Verilog, whose outputs must be those that were recorded, and counts. A
row is kept with the hash of the unit's source and of its benches, so that a run that was stopped goes on, and only what
changed is measured again. All units take some hours.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.support.docs_tables import markdown_table, write_blocks
from edgedec.errors import EdgedecError, ToolError
from edgedec.host.install_hint import install_extra

__all__ = ["CHANGED", "TABLE", "benches", "load", "measured", "source_hash", "tables", "units"]

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).parent / "figures" / "coverage.json"
CHANGED = "not measured"  # note of a unit without a row
ROOMS = ("attention", "blocks", "control", "logits", "matrix", "memory", "system", "vector")
_LARGEST_GAPS, _KEPT_GAPS = 10, 5  # rows of the page, and of a unit
_NO_BENCH = "no bench of its own"
_NOT_ALONE = "no bench that simulates it by itself in one clock domain"

Row = dict[str, Any]


def units() -> list[str]:
    """Return the units: the modules of ``ROOMS`` that define a component, as "vector.requantizer"."""
    from amaranth.lib.wiring import Component

    found = []
    for room in ROOMS:
        for path in sorted((ROOT / "hw" / room).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT / "hw").with_suffix("").parts)
            module = importlib.import_module(f"edgedec.hw.{name}")
            kinds = [
                kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__
            ]
            if any(issubclass(kind, Component) for kind in kinds):
                found.append(name)
    return found


def benches(unit: str) -> list[Path]:
    """Return the test files of a unit's own name, the one that is named like it first."""
    room, _, name = unit.rpartition(".")
    folder = ROOT / "tests" / "hw" / room.replace(".", "/")
    return sorted(folder.glob(f"test_{name}*.py"), key=lambda path: (len(path.name), path.name))


def source_hash(unit: str) -> str:
    """Return the hash of the sources of a unit and of its benches."""
    paths = [ROOT / "hw" / f"{unit.replace('.', '/')}.py", *benches(unit)]
    return hashlib.sha256("\0".join(path.read_text("utf-8") for path in paths).encode()).hexdigest()[:16]


def load() -> dict[str, Row]:
    """Return the rows by unit."""
    rows: dict[str, Row] = json.loads(TABLE.read_text("utf-8"))
    return rows


def measured(unit: str) -> Row:
    """Run the benches of a unit, and return its row.

    Raises:
        ToolError: a tool is missing or fails.
        EdgedecError: a bench fails, or the Verilog differs from what was recorded.
    """
    from edgedec.sim.verify.cocotb_runner import missing_tools

    if missing := missing_tools():
        raise ToolError(
            f"coverage needs {', '.join(missing)}; run: {install_extra('hdl')}, and install make and a C++ compiler"
        )
    row: Row = {"source": source_hash(unit)}
    files = benches(unit)
    if not files:
        return {**row, "note": _NO_BENCH}
    with tempfile.TemporaryDirectory(prefix="edgedec-recorded-") as temporary:
        _recorded(unit, files, Path(temporary))
        return {**row, **_counted(Path(temporary))}


def _recorded(unit: str, files: Sequence[Path], folder: Path) -> None:
    names = [str(path.relative_to(ROOT)) for path in files]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.hw.support.record_inputs",
        "-p",
        "no:cacheprovider",
        *names,
    ]
    variables = {**os.environ, "RECORDED_INPUTS": str(folder), "RECORDED_MODULE": f"edgedec.hw.{unit}"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EdgedecError(f"the benches of {unit} fail:\n" + "\n".join(done.stdout.splitlines()[-15:]))


def _counted(folder: Path) -> Row:
    """Return the counts of the recorded configuration with the widest ports, and its signals that never change."""
    from edgedec.sim.verify.verilated import Ports, replay

    recorded = []
    for path in sorted(folder.glob("*.json")):
        traces = sorted(folder.glob(f"{path.stem}.*.trace"))
        if traces:
            recorded.append((json.loads(path.read_text("utf-8")), path, traces))
    if not recorded:
        return {"note": _NOT_ALONE}
    bits = [sum((*described["inputs"].values(), *described["outputs"].values())) for described, *_ in recorded]
    described, path, traces = recorded[bits.index(max(bits))]
    ports = Ports(inputs=described["inputs"], outputs=described["outputs"])
    sums = {"line": [0, 0], "toggle": [0, 0]}
    signals: dict[str, list[int]] = {}  # changes that were never seen, and all
    for point, count in replay(path.with_suffix(".il").read_text("utf-8"), ports, traces).items():
        sums[point.kind][0] += count > 0
        sums[point.kind][1] += 1
        if point.kind == "toggle":
            gap = signals.setdefault(point.signal, [0, 0])
            gap[0] += count == 0
            gap[1] += 1
    gaps = sorted((-unseen, name) for name, (unseen, _) in signals.items() if unseen)
    return {
        "configuration": described["name"],
        "recorded": len(recorded),
        "lines": sums["line"],
        "toggles": sums["toggle"],
        "gaps": [[name, *signals[name]] for _, name in gaps[:_KEPT_GAPS]],
    }


def tables() -> dict[str, str]:
    """Return the blocks of docs/reports/coverage.md."""
    rows, found = load(), units()
    figures, gaps, left_out = [], [], []
    for unit in found:
        row = rows.get(unit, {"note": CHANGED})
        if "note" in row:
            left_out.append((f"`{unit}`", row["note"]))
            continue
        shares = [
            f"{hit:,} of {of:,} ({100 * hit / of:.1f} %)" if of else "none"
            for hit, of in (row["lines"], row["toggles"])
        ]
        figures.append((f"`{unit}`", f"`{row['configuration']}`", str(row["recorded"]), *shares))
        gaps += [(unseen, of, unit, name) for name, unseen, of in row["gaps"]]
    gaps.sort(key=lambda one: (-one[0], one[2], one[3]))
    largest = [(f"`{unit}`", f"`{name}`", f"{unseen:,} of {of:,}") for unseen, of, unit, name in gaps[:_LARGEST_GAPS]]
    return {
        "coverage units": markdown_table(("unit", "configuration", "of", "lines", "changes of bits"), figures),
        "coverage gaps": markdown_table(("unit", "signal", "changes that no bench makes"), largest),
        "coverage without": markdown_table(("unit", "why it has no figures"), left_out),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--units", nargs="+", metavar="UNIT", help="units to measure, as vector.requantizer; all by default"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="measure what changed, and write the table and the page"
    )
    options = parser.parse_args()
    if find_spec("amaranth") is None:
        sys.stderr.write(f"this benchmark needs the package amaranth; run: {install_extra('hdl')}\n")
        return 3
    known = units()
    for unit in options.units or ():
        if unit not in known:
            parser.error(f"{unit} is no unit; there are {', '.join(known)}")
    failed = 0
    for unit in options.units or known:
        if options.write_docs and load().get(unit, {}).get("source") == source_hash(unit):
            continue
        try:
            row = measured(unit)
        except ToolError as error:
            sys.stderr.write(f"{error}\n")
            return error.exit_code
        except EdgedecError as error:
            sys.stderr.write(f"{unit}: {error}\n")
            failed = error.exit_code
            continue
        sys.stdout.write(f"{unit}: {json.dumps(row)}\n")
        sys.stdout.flush()
        if options.write_docs:
            rows = {**load(), unit: row}
            lines = [
                f"{json.dumps(one)}:{json.dumps(rows[one], separators=(',', ':'))}" for one in known if one in rows
            ]
            TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")  # a line for each unit
    if options.write_docs:
        for page in write_blocks(tables()):
            sys.stdout.write(f"wrote {page}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
