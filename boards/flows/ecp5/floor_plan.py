"""Draw a placement: every tile has the colour of the part with most of its cells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from edgedec.errors import BundleError

__all__ = ["floor_plan", "part_of_cell", "picture"]

_COLOURS = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2"),
    *("#17becf", "#bcbd22", "#7f7f7f", "#aec7e8", "#ffbb78", "#98df8a", "#c5b0d5"),
)
_REST, _REST_COLOUR = "other parts", "#555"
_TILE = 7  # px
_MARGIN, _LEGEND = 4, 230
_LINE = re.compile(r"(\d+)\t(\d+)\t([^\t]+)\t(.+)")
_MOST_TILES = 1024  # each way

Tile = tuple[int, int]


def floor_plan(path: Path) -> str:
    """Draw the picture of a placement.tsv.

    Raises:
        BundleError: it is damaged.
    """
    cells = []
    for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or max(int(match[1]), int(match[2])) >= _MOST_TILES:
            raise BundleError(f"{path}:{number} is no cell of a placement; remove results/ and run the build again")
        cells.append((int(match[1]), int(match[2]), match[3], match[4]))
    return picture(cells)


def part_of_cell(name: str) -> str:
    """The part of the design that a cell belongs to: ``datapath.matrix`` of the accelerator; or what stands beside it."""
    words = name.split(".")[:-1]  # without the cell's own
    if not words or words[0] != "system":
        return "nextpnr's own" if name.startswith("$") else "pins and clocks"
    words = words[1:]
    if words[:2] == ["accelerator", "datapath"] and len(words) > 2:
        return words[2]
    if words[:1] == ["accelerator"]:
        return words[1] if len(words) > 1 else "accelerator"
    return re.sub(r"\d+$", "", words[0]) if words else "system"


def picture(cells: Iterable[tuple[int, int, str, str]]) -> str:
    """Draw the cells, given as column, row, site and name."""
    tiles: dict[Tile, Counter[str]] = {}
    counts = Counter[str]()
    blocks: set[Tile] = set()
    for x, y, site, name in cells:
        part = part_of_cell(name)
        tiles.setdefault((x, y), Counter())[part] += 1
        counts[part] += 1
        if not site.startswith("SLICE"):
            blocks.add((x, y))
    shown = [part for part, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))][: len(_COLOURS)]
    colours = dict(zip(shown, _COLOURS, strict=False))
    columns, rows = (max((tile[at] for tile in tiles), default=0) + 1 for at in (0, 1))
    width, height = columns * _TILE + 2 * _MARGIN, rows * _TILE + 2 * _MARGIN
    height = max(height, 18 * (len(counts) + 1))
    shapes = [f'<rect x="0" y="0" width="{width}" height="{height}" fill="#f6f6f6"/>', *_shapes(tiles, blocks, colours)]
    legend = _legend(counts, colours, width + 10)
    inside = f"<title>Floor plan: cells by part of the design</title>{''.join(shapes)}{legend}"
    size = f'viewBox="0 0 {width + _LEGEND} {height}" width="{width + _LEGEND}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{inside}</svg>\n'


def _shapes(tiles: Mapping[Tile, Counter[str]], blocks: set[Tile], colours: Mapping[str, str]) -> Iterable[str]:
    """A path for each colour, a short thick line for each tile; in units of tiles."""
    squares: dict[str, list[str]] = {}
    dots = []
    for x, y in sorted(tiles, key=lambda tile: (tile[1], tile[0])):
        part = min(tiles[x, y].items(), key=lambda item: (-item[1], item[0]))[0]
        squares.setdefault(colours.get(part, _REST_COLOUR), []).append(f"M{x} {y}h.9")
        if (x, y) in blocks:
            dots.append(f"M{x}.3 {y}h.3")
    yield f'<g transform="translate({_MARGIN} {_MARGIN + _TILE / 2:g}) scale({_TILE})">'
    for colour, lines in sorted(squares.items()):
        yield f'<path stroke="{colour}" stroke-width=".9" d="{"".join(lines)}"/>'
    if dots:
        yield f'<path stroke="#fff" stroke-width=".3" d="{"".join(dots)}"/>'
    yield "</g>"


def _legend(counts: Counter[str], colours: Mapping[str, str], left: int) -> str:
    rows = [(part, counts[part], colour) for part, colour in colours.items()]
    rest = sum(count for part, count in counts.items() if part not in colours)
    if rest:
        rows.append((_REST, rest, _REST_COLOUR))
    lines = []
    for at, (part, count, colour) in enumerate(rows):
        top = 6 + 18 * at
        lines.append(f'<rect x="{left}" y="{top}" width="11" height="11" fill="{colour}"/>')
        lines.append(f'<text x="{left + 17}" y="{top + 10}" font-size="12">{escape(part)}: {count:,} cells</text>')
    return "".join(lines)
