"""report.html: the content of report.json for people. One file, no scripts, nothing from a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from edgedec.board import RESOURCES
from edgedec.boards.flows.interface import NOT_PROVEN

__all__ = ["report_page"]

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .6em 0 }
td, th { padding: .15em .8em .15em 0; text-align: left; vertical-align: top }
th { border-bottom: 1px solid #999 } td.n { text-align: right; font-variant-numeric: tabular-nums } code { font-size: 90% }
.label { background: #fff3c4; padding: .5em .8em; border-left: 4px solid #c90 } .hash { font: 12px monospace; color: #666 }
"""
_KINDS = (("estimated", "#8fb8de"), ("synthesised", "#4f86c6"), ("placed", "#1f3a5f"))
_BAR, _LEFT = 420, 80  # px
_FLOOR_PLAN = (
    "Every tile of the device in the colour of the part of the design that has most of its cells, as placed; a white dot "
    "is on memories, multipliers, pins and clocks."
)


def report_page(content: Mapping[str, Any], floor_plan: str | None = None) -> str:
    """Deterministic.

    Args:
        floor_plan: SVG.
    """
    board = content["board"]
    title = f"edgedec accelerator for {board['title']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="label"><b>{escape(content["label"])}.</b> {_next(content)}</p>',
        "<h2>Configuration</h2>",
        _table(("", ""), [("board", f"{board['name']}, {board['part']}, {board['family']}"), *_members(content)]),
        "<h2>Resources</h2>",
        _resources(content["resources"]),
        "<h2>Timing and power</h2>",
        _timing(content["timing"], content["power"] or {}),
        *([] if floor_plan is None else ["<h2>Floor plan</h2>", floor_plan, f"<p>{_FLOOR_PLAN}</p>"]),
        "<h2>Speed</h2>",
        _speed(content["speed"]),
        "<h2>Memory</h2>",
        _table(
            ("region", "offset", "bytes"),
            [(row["region"], f"{row['offset']:#x}", f"{row['bytes']:,}") for row in content["memory"]],
            right=(1, 2),
        ),
        _table(
            ("registers of", "address", "by"),
            [(r["what"], f"{r['address']:#x}", r["bus"]) for r in content["addresses"]],
        ),
        "<h2>Registers</h2>",
        _table(("offset", "register", "access", "what"), _registers(content["registers"])),
        "<h2>Made by</h2>",
        _table(("", ""), list(content["tools"].items())),
        "<h2>Files</h2>",
        _files(content),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    before = f'<!doctype html>\n<html lang="en"><head>{head}</head><body>'
    return "\n".join([before, *parts, "</body></html>", ""])


def _next(content: Mapping[str, Any]) -> str:
    if content["state"] == "built":
        timing = content["timing"]
        met = timing.get("met")
        if met is None and timing["kind"] == NOT_PROVEN:
            return f"<b>Timing is not proven</b>: {escape(timing['reason'])}."
        return "Timing is met." if met else "<b>Timing is not met</b>: it must not be used at this clock."
    return f"Where the tools are: <code>{escape(content['command'])}</code>"


def _timing(timing: Mapping[str, Any], power: Mapping[str, Any]) -> str:
    """Figures; each clock, where there are several; attempts and the longest paths, where they are known."""
    paths = timing.get("critical_paths", [])
    plain = {
        name: value
        for name, value in timing.items()
        if name not in ("clocks", "critical_paths", "failing_path", "tried")
    }
    parts = [_table(("", ""), [(name, _figure(value)) for name, value in {**plain, **power}.items()])]
    if "clocks" in timing:
        rows = [
            (name, f"{clock['wanted_hz'] / 1e6:g}", f"{clock['achieved_hz'] / 1e6:.2f}", str(clock["met"]))
            for name, clock in timing["clocks"].items()
        ]
        parts.append(_table(("clock", "wanted, MHz", "achieved, MHz", "met"), rows, right=(1, 2)))
    if "tried" in timing:
        tried = [
            (
                f"{row['clock_hz'] / 1e6:.2f}",
                row["synthesis"],
                row["implementation"],
                f"{row['wns_ns']:g}",
                f"{row['whs_ns']:g}",
                str(row["met"]),
            )
            for row in timing["tried"]
        ]
        header = ("tried clock, MHz", "synthesis", "implementation", "setup slack, ns", "hold slack, ns", "met")
        parts.append(_table(header, tried, right=(0, 3, 4)))
    for path in paths:
        about = (
            f"{path['from']} to {path['to']}: {path['ns']:g} ns, {path['logic_ns']:g} in logic and "
            f"{path['routing_ns']:g} in routing, {path['levels']} levels; {path['begins']} to {path['ends']}"
        )
        steps = [(step["kind"], f"{step['ns']:g}", step["at"], str(tuple(step["tile"]))) for step in path["steps"]]
        table = _table(("", "ns", "cell or net", "tile"), steps, right=(1,))
        parts.append(f"<details><summary>{escape(about)}</summary>{table}</details>")
    return "\n".join(parts)


def _members(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = {**content["configuration"], **{f"program: {name}": value for name, value in content["program"].items()}}
    return [(name, _figure(value)) for name, value in found.items()]


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        shown = (
            f"<{tag}{' class=n' if at in right else ''}>{escape(str(cell))}</{tag}>" for at, cell in enumerate(cells)
        )
        return f"<tr>{''.join(shown)}</tr>"

    lines = [line(header, "th")] if any(header) else []
    return "\n".join(["<table>", *lines, *(line(row, "td") for row in rows), "</table>"])


def _resources(resources: Mapping[str, Any]) -> str:
    known = [(kind, colour) for kind, colour in _KINDS if resources[kind] is not None]
    header = ["", "available", "usable", *(kind for kind, _ in known)]
    rows = []
    for name in RESOURCES:
        counts = [resources[kind].get(name) for kind, _ in known]
        cells = [resources["available"][name], resources["usable"][name], *counts]
        rows.append([name, *("-" if cell is None else _figure(cell) for cell in cells)])
    by = "; ".join(f"{kind}: {resources[kind]['by']}" for kind, _ in known)
    return f"{_bars(resources, known)}\n{_table(header, rows, right=range(1, len(header)))}\n<p>{escape(by)}.</p>"


def _bars(resources: Mapping[str, Any], known: Sequence[tuple[str, str]]) -> str:
    """Shares of what the device has; a line where placement and routing are expected to end."""
    shapes, top = [], 6
    for name in RESOURCES:
        available = resources["available"][name]
        if not available:
            continue
        height = 10 * len(known)
        shapes.append(f'<text x="0" y="{top + height / 2 + 4:g}" font-size="12">{name}</text>')
        shapes.append(f'<rect x="{_LEFT}" y="{top}" width="{_BAR}" height="{height}" fill="#eee"/>')
        for at, (kind, colour) in enumerate(known):
            share = min((resources[kind].get(name) or 0) / available, 1.0)
            shapes.append(
                f'<rect x="{_LEFT}" y="{top + 10 * at}" width="{_BAR * share:.1f}" height="9" fill="{colour}"/>'
            )
            shapes.append(
                f'<text x="{_LEFT + _BAR + 8}" y="{top + 10 * at + 8}" font-size="9">{share:.1%} {kind}</text>'
            )
        limit = _LEFT + _BAR * resources["usable"][name] / available
        shapes.append(f'<path d="M{limit:.1f} {top - 2}v{height + 4}" stroke="#c33"/>')
        top += height + 10
    size = f'width="{_LEFT + _BAR + 130}" height="{top}"'
    inside = f"<title>Shares of the device</title>{''.join(shapes)}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{inside}</svg>'


def _speed(speed: Mapping[str, Any]) -> str:
    rows = [
        (
            f"{row['committed']:,}",
            f"{row['slots']}",
            f"{row['cycles']:,}",
            f"{row['seconds'] * 1e3:.3f}",
            f"{row['tokens_per_second']:.1f}",
            f"{row['tokens_per_second_shared']:.1f}",
        )
        for row in speed["passes"]
    ]
    header = ("positions before", "tokens of the pass", "cycles", "ms", "tokens/s", "tokens/s, shared memory")
    about = (
        f"{speed['kind']} by {speed['by']}, at {speed['clock_hz'] / 1e6:g} MHz and "
        f"{speed['bandwidth_bytes_s'] / 1e9:.2f} GB/s ({speed['bandwidth_kind']}). "
        f"Shared memory: {speed['shared']}. No board was measured."
    )
    return f"{_table(header, rows, right=range(6))}\n<p>{escape(about)}</p>"


def _registers(registers: Iterable[Mapping[str, Any]]) -> Iterable[Sequence[str]]:
    for register in registers:
        count = f"[{register['count']}]" if register["count"] > 1 else ""
        yield f"{register['offset']:#05x}", f"{register['name']}{count}", register["access"], register["description"]
        for field in register["fields"]:
            bits = f"{field['lsb'] + field['bits'] - 1}:{field['lsb']}"
            yield "", f"· {field['name']}", bits, field["description"]


def _files(content: Mapping[str, Any]) -> str:
    built = content["bitstream"]
    files = {**({} if built is None else {built["name"]: built["sha256"]}), **content["files"]}
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td class=hash>{escape(digest)}</td></tr>" for name, digest in files.items()
    )
    return f"<table>{rows}</table>"
