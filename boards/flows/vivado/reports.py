"""Read Vivado's text reports: slack, placed resources, power."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgedec.errors import BundleError

__all__ = ["read_attempts", "read_failing_path", "read_power", "read_timing", "read_utilization"]

_MOST_BYTES = 256 << 20
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_SLACKS = {"wns_ns": "WNS(ns)", "tns_ns": "TNS(ns)", "whs_ns": "WHS(ns)", "wpws_ns": "WPWS(ns)"}
_FAILING = "TNS Failing Endpoints"
# Table row for each of edgedec.board.RESOURCES, on UltraScale+ and on 7 series.
_SITES = {
    "lut": ("CLB LUTs", "Slice LUTs"),
    "ff": ("CLB Registers", "Slice Registers"),
    "bram36": ("Block RAM Tile",),
    "uram": ("URAM",),
    "dsp": ("DSPs",),
}
_OPTIONAL = ("uram",)  # 7 series have none, and no row
_POWER = {
    "total_w": "Total On-Chip Power (W)",
    "dynamic_w": "Dynamic (W)",
    "static_w": "Device Static (W)",
    "junction_c": "Junction Temperature (C)",
}
_AGAIN = "remove work/ and results/ and run the build again"


def read_timing(path: Path, clock_hz: float) -> dict[str, Any]:
    """Slack of ``report_timing_summary``, by its table "Design Timing Summary".

    Args:
        clock_hz: requested clock.

    Returns:
        wns_ns, tns_ns, whs_ns, wpws_ns (slack of the shortest pulse), failing_endpoints, met, clock_hz, and achieved_hz:
        what the longest path would allow.

    Raises:
        BundleError: the file is missing or has no such table, or no path was timed.
    """
    lines = iter(_lines(path))
    for line in lines:
        if line.split()[:2] == ["WNS(ns)", "TNS(ns)"]:
            names = re.split(r"\s{2,}", line.strip())
            break
    else:
        raise _wrong(path, "no table with WNS(ns)")
    rows = (row.split() for row in lines)
    values = next((row for row in rows if row and not set("".join(row)) <= {"-"}), [])
    found = dict(zip(names, values, strict=False))
    slack = {key: _figure(path, name, found.get(name, "")) for key, name in _SLACKS.items()}
    period_ns = 1e9 / clock_hz
    return {
        **slack,
        "failing_endpoints": int(_figure(path, _FAILING, found.get(_FAILING, ""))),
        "met": min(slack[key] for key in ("wns_ns", "whs_ns", "wpws_ns")) >= 0,
        "clock_hz": clock_hz,
        "achieved_hz": 1e9 / (period_ns - slack["wns_ns"]),
    }


def read_attempts(path: Path) -> list[dict[str, Any]]:
    """Return what was tried, in order: wanted_hz, clock_hz, synthesis and implementation (strategies), wns_ns, whs_ns, met.

    Raises:
        BundleError: the file is missing, or a line is damaged.
    """
    found = []
    for line in _lines(path):
        try:
            wanted, synthesis, implementation, clock, *slacks = line.split("\t")
            wns, whs, pulse = map(float, slacks)
            found.append(
                {
                    "wanted_hz": float(wanted) * 1e6,
                    "clock_hz": float(clock) * 1e6,
                    "synthesis": synthesis,
                    "implementation": implementation,
                    "wns_ns": wns,
                    "whs_ns": whs,
                    "met": min(wns, whs, pulse) >= 0,
                }
            )
        except ValueError:
            raise _wrong(path, f"the line {line[:80]!r} is no attempt") from None
    return found


def read_failing_path(path: Path, facts: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the worst path that fails, by the facts of a run: kind (setup or hold), from, to, slack_ns, delay_ns, levels.

    Args:
        path: the file that the facts are from.

    Returns:
        None where no path is named: timing is met, or a pulse is too short.

    Raises:
        BundleError: a fact is missing or no number.
    """
    if "path_kind" not in facts:
        return None
    slack, delay, levels = (
        _figure(path, name, facts.get(name, "")) for name in ("path_slack_ns", "path_delay_ns", "path_levels")
    )
    names = {name: facts.get(f"path_{name}", "") for name in ("kind", "from", "to")}
    return {**names, "slack_ns": slack, "delay_ns": delay, "levels": int(levels)}


def read_utilization(path: Path) -> Mapping[str, float]:
    """Used, of each of RESOURCES, by ``report_utilization``. A half of bram36 is a RAM of 18 kbit.

    Raises:
        BundleError: the file is missing, or has no row of one.
    """
    used = dict[str, str]()
    column = None
    for cells in _rows(path):
        if cells[0] == "Site Type" and "Used" in cells:
            column = cells.index("Used")
        elif column is not None and len(cells) > column:
            used.setdefault(cells[0].rstrip("*"), cells[column])
    found = dict[str, float]()
    for name, sites in _SITES.items():
        site = next((site for site in sites if site in used), None)
        if site is not None:
            found[name] = _figure(path, site, used[site])
        elif name in _OPTIONAL:
            found[name] = 0.0
        else:
            raise _wrong(path, f"no row {' or '.join(sites)}")
    return found


def read_power(path: Path) -> Mapping[str, float]:
    """total_w, dynamic_w, static_w and junction_c, by ``report_power``: Vivado's estimate at its own activity rates.

    Raises:
        BundleError: the file is missing, or has no row of one.
    """
    cells = {row[0]: row[1] for row in reversed(list(_rows(path))) if len(row) > 1}
    return {key: _figure(path, name, cells.get(name, "")) for key, name in _POWER.items()}


def _lines(path: Path) -> Sequence[str]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise _wrong(path, f"larger than {_MOST_BYTES} bytes")
        return path.read_text("utf-8", errors="replace").splitlines()
    except OSError as error:
        raise _wrong(path, f"it cannot be read ({error.strerror or error})") from None


def _rows(path: Path) -> Iterator[list[str]]:
    """Cells of every row of every table."""
    for line in _lines(path):
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if cells[0]:
                yield cells


def _figure(path: Path, name: str, text: str) -> float:
    """``1.234``, or ``12.5 (Junction temp exceeded!)``; NA, where nothing was there to be measured, is an error."""
    match = _NUMBER.match(text)
    if match is None:
        raise _wrong(path, f"{name} is {text[:40] or 'missing'!r}, no number")
    return float(match[0])


def _wrong(path: Path, what: str) -> BundleError:
    return BundleError(f"{path} is no report of a finished build: {what}; {_AGAIN}")
