"""The committed table of timing: figures of each part of the default configuration, and of those that have an option in
the configurations of other models. They may only improve.

A row has the hash of the RTLIL that was measured, so that what did not change need not be measured again. ``RANKED`` are the
figures that are compared; a row that exceeds a gate is an excess, which the table lists, and which may only become smaller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.accelerator.speed import chosen
from benchmarks.support.docs_tables import markdown_table
from benchmarks.support.shapes import GEMMA_2_2B
from edgedec.board import FAMILIES
from edgedec.boards import all_boards, find_board
from edgedec.errors import UsageError
from edgedec.hw.compiler.shapes import shape_graph, shape_model
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.hw.plan.estimate import estimate
from edgedec.sim.synthesis.estimate_parts import Parts
from edgedec.sim.synthesis.netlist_levels import MOST_LEVELS, MOST_LOADS
from edgedec.sim.synthesis.placing import place
from edgedec.sim.synthesis.timing import design_hash, measure

__all__ = [
    "RANKED",
    "TABLE",
    "cases",
    "excesses",
    "load",
    "measured_row",
    "option_parts",
    "parts",
    "placed_row",
    "save",
    "tables",
    "worse",
]

TABLE = Path(__file__).parent / "figures" / "timing.json"
RANKED = ("levels", "endpoints_above", "register_loads", "net_loads", "sta_ns")
# Endpoints count by themselves, because levels are rounded: 5.04 are shown as 5.0.
_GATES = {"levels": MOST_LEVELS, "endpoints_above": 0, "register_loads": MOST_LOADS, "net_loads": MOST_LOADS}
_NOT_RUN = "not run"  # the placement of a part of another configuration

Row = dict[str, Any]


def parts(family: str = "zynq-7000") -> Parts:
    """Return the parts of the default configuration, elaborated for the multipliers of a family."""
    return Parts(AcceleratorConfig(), FAMILIES[family])


def cases() -> dict[str, AcceleratorConfig]:
    """Return the configurations whose options the default one has not: two models' on a KV260, windows, others."""
    board, gemma = find_board("kv260"), shape_model(shape_graph(GEMMA_2_2B))
    return {
        "bonsai-1.7b": chosen(board, "bonsai-1.7b", None),
        "gemma-2-2b": config_for_board(gemma, board, others=all_boards()),
        "windows": replace(AcceleratorConfig(), context=4096, window=256),
        "sequences": replace(AcceleratorConfig(), sequences=8),
        "rough-head": replace(AcceleratorConfig(), taps=True, rough_head=2),
    }


def option_parts(config: AcceleratorConfig) -> list[str]:
    """Return the parts that an option or the context makes: those that the default context without options has not, or
    whose estimate is another one there.
    """
    without = replace(
        config,
        shared=False,
        head_norms=False,
        post_norms=False,
        score_cap=False,
        gelu=False,
        scaling=False,
        window=0,
        taps=False,
        rough_head=0,
        sequences=1,
        context=AcceleratorConfig().context,
    )
    plain = estimate(without).parts
    return [path for path, needs in estimate(config).parts.items() if needs != plain.get(path)]


def load() -> dict[str, dict[str, Row]]:
    """Return the table: "levels" and "placed", each a row by part, and "options", a row by "CASE PART"."""
    kept: dict[str, dict[str, Row]] = json.loads(TABLE.read_text("utf-8"))
    return kept


def save(table: Mapping[str, Mapping[str, Row]]) -> None:
    parts = (
        f"{json.dumps(kind)}:{{\n"
        + ",\n".join(f"{json.dumps(name)}:{json.dumps(row, separators=(',', ':'))}" for name, row in rows.items())
        + "\n}"
        for kind, rows in table.items()
    )
    TABLE.write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")


def part_hash(part: str, of: Parts) -> str:
    """Return the hash of the RTLIL of a part."""
    return "-".join(design_hash(design) for design in of.designs(part))[:64]


def measured_row(part: str, of: Parts) -> Row:
    """Return the row of a part: the worst of its designs."""
    timings = [measure(design) for design in of.designs(part)]
    worst = max((timing.levels for timing in timings), key=lambda levels: levels.worst)
    path = worst.paths[0] if worst.paths else None
    return {
        "hash": part_hash(part, of),
        "levels": worst.worst,
        "endpoints_above": sum(timing.levels.excess for timing in timings),
        "register_loads": _most(loads.loads for timing in timings for loads in timing.levels.register_loads),
        "net_loads": _most(loads.loads for timing in timings for loads in timing.levels.net_loads),
        "sta_ns": max(timing.sta_ns for timing in timings),
        "path": f"{path.start} to {path.end}" if path else "",
    }


def placed_row(part: str, of: Parts) -> Row:
    """Return the placement of a part: the slowest of its designs."""
    placements = [place(design) for design in of.designs(part)]
    clocks = [placement.mhz for placement in placements if placement.mhz is not None]
    note = next((placement.note for placement in placements if placement.mhz is None), "")
    return {"hash": part_hash(part, of), "mhz": min(clocks) if clocks else None, "note": "" if clocks else note}


def worse(before: Row, now: Row) -> list[str]:
    """Return the figures of a row that became worse, as "levels 4.2 -> 4.5"."""
    return [f"{name} {before[name]} -> {now[name]}" for name in RANKED if now[name] > before[name]]


def excesses(rows: Mapping[str, Row]) -> dict[str, list[str]]:
    """Return the figures of each row that exceed a gate."""
    found = {
        part: [f"{name} {row[name]} above {most:g}" for name, most in _GATES.items() if row[name] > most]
        for part, row in rows.items()
    }
    return {part: texts for part, texts in found.items() if texts}


def tables() -> dict[str, str]:
    """Return the blocks of docs/reports/timing.md."""
    table = load()
    header = ["part", "levels", "endpoints above 5", "loads of a register", "of another net", "sta, ns", "placed, MHz"]
    rows: list[Sequence[str]] = []
    optional: list[Sequence[str]] = []
    for part, row in table["levels"].items():
        placed = table["placed"].get(part)
        clock = "" if placed is None else f"{placed['mhz']:.0f}" if placed["mhz"] else placed["note"]
        rows.append([f"`{part}`", *_figures(row), clock])
    for name, row in table["options"].items():
        case, _, part = name.partition(" ")
        optional.append([case, f"`{part}`", *_figures(row), _NOT_RUN])
    measured = {**table["levels"], **table["options"]}
    known = [
        f"- `{part}`: {', '.join(texts)}; worst path {measured[part]['path']}"
        for part, texts in excesses(measured).items()
    ]
    return {
        "timing parts": markdown_table(header, rows),
        "timing options": markdown_table(["configuration", *header], optional),
        "timing excesses": "\n".join(known) if known else "No part exceeds a gate.",
    }


def _figures(row: Row) -> list[str]:
    return [f"{row['levels']:.1f}", *(f"{row[name]:,}" for name in RANKED[1:4]), f"{row['sta_ns']:.2f}"]


def check(part: str, before: Row | None, now: Row, *, accept: str = "") -> Row:
    """Return the row to keep in place of ``before``.

    Raises:
        UsageError: a figure became worse without a reason that is accepted, or beyond its gate.
    """
    if before is None:
        return now
    changes = worse(before, now)
    beyond = [name for name, most in _GATES.items() if now[name] > max(most, before[name])]
    if beyond or (changes and not accept):
        advice = "mend it" if beyond else "mend it, or give the reason with --accept"
        raise UsageError(f"{part} became worse: {', '.join(changes)}; the table may only improve: {advice}")
    return {**now, **({"accepted": accept} if changes else {})}


def _most(loads: Any) -> int:
    return max(loads, default=0)
