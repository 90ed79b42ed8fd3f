"""Read nextpnr's report: placed resources, achieved clocks and the longest paths."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgedec.errors import BundleError

__all__ = ["read_report"]

_MOST_BYTES = 256 << 20
_CLOSE = 2e-3  # the report's clocks are periods in whole picoseconds
# nextpnr's cell for each of edgedec.board.RESOURCES, and the number of cells that make one.
_CELLS = {"lut": ("TRELLIS_COMB", 1), "ff": ("TRELLIS_FF", 1), "bram36": ("DP16KD", 2), "dsp": ("MULT18X18D", 1)}
_MOST_STEPS = 60  # shown steps of a path
_TAIL = re.compile(r"_(LUT4|PFUMX|L6MUX21|TRELLIS_FF|CCU2C|DP16KD|PDPW16KD|MULT18X18D|TRELLIS_DPR16X4)(_.*)?$")


def read_report(path: Path, clocks_hz: Mapping[str, float]) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the placed counts of RESOURCES, and the timing.

    Args:
        clocks_hz: the clocks that were asked for, by name, the accelerator's first.

    Returns:
        counts; and clock_hz and achieved_hz of the first clock, met by all, wns_ns of all, clocks and critical_paths.

    Raises:
        BundleError: the file is missing, damaged, or has no such clock.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
        content = json.loads(path.read_text("utf-8"))
        return _resources(content["utilization"]), _timing(content, clocks_hz)
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        ArithmeticError,
        IndexError,
        RecursionError,
    ) as error:
        raise BundleError(
            f"{path} is no report of nextpnr's: {reprlib.repr(str(error))}; remove results/ and run the build again"
        ) from None


def _resources(utilization: Mapping[str, Any]) -> dict[str, float]:
    found = {name: utilization[cell]["used"] / per for name, (cell, per) in _CELLS.items()}
    return {**{name: int(count) if count == int(count) else count for name, count in found.items()}, "uram": 0}


def _timing(content: Mapping[str, Any], clocks_hz: Mapping[str, float]) -> dict[str, Any]:
    nets = {
        net: (float(clock["achieved"]) * 1e6, float(clock["constraint"]) * 1e6)
        for net, clock in content["fmax"].items()
    }
    clocks = dict[str, dict[str, Any]]()
    names = dict[str, str]()  # nextpnr's net -> ours
    for name, wanted in clocks_hz.items():
        # Before the gate that begins it a clock is a net of its own, with three registers: the slowest one is meant.
        close = [net for net, (_, limit) in nets.items() if abs(limit - wanted) <= _CLOSE * wanted and net not in names]
        net = min(close, key=lambda net: nets[net][0], default=None)
        if net is None:
            raise ValueError(f"no {wanted / 1e6:g} MHz")
        names[net] = name
        achieved = nets[net][0]
        clocks[name] = {
            "wanted_hz": wanted,
            "achieved_hz": achieved,
            "slack_ns": round(1e9 / wanted - 1e9 / achieved, 3),
            "met": achieved >= nets[net][1],
        }
    if not clocks:
        raise ValueError("no clock was timed")
    first = next(iter(clocks.values()))
    return {
        "met": all(achieved >= limit for achieved, limit in nets.values()),
        "clock_hz": first["wanted_hz"],
        "achieved_hz": first["achieved_hz"],
        "wns_ns": min(clock["slack_ns"] for clock in clocks.values()),
        "clocks": clocks,
        "critical_paths": [_path(found, names) for found in content["critical_paths"]],
    }


def _path(found: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """From a register to a register, or a pin: parts of the delay, and each cell on the way."""
    steps: Sequence[Mapping[str, Any]] = found["path"]
    routing = sum(float(step["delay"]) for step in steps if step["type"] == "routing")
    total = sum(float(step["delay"]) for step in steps)
    shown = [
        {
            "kind": step["type"],
            "ns": round(float(step["delay"]), 3),
            "at": _short(step["net"] if step["type"] == "routing" else step["to"]["cell"]),
            "tile": list(step["to"]["loc"]),
        }
        for step in steps
        if float(step["delay"]) > 0
    ]
    return {
        "from": _edge(found["from"], names),
        "to": _edge(found["to"], names),
        "begins": _short(steps[0]["from"]["cell"]),
        "ends": _short(steps[-1]["to"]["cell"]),
        "ns": round(total, 3),
        "logic_ns": round(total - routing, 3),
        "routing_ns": round(routing, 3),
        "levels": sum(step["type"] == "logic" for step in steps),
        "steps": shown[:_MOST_STEPS],
    }


def _edge(text: str, names: Mapping[str, str]) -> str:
    """``posedge $glbnet$clk`` as ``sync``."""
    net = text.removeprefix("posedge ")
    return names.get(net, net)


def _short(name: str) -> str:
    """The part of the design and the signal, without what yosys appended: ``a.b.sum_LUT4_Z_1_D_LUT4_Z`` as ``a.b.sum``."""
    return _TAIL.sub("", name.removeprefix("system."))
