"""Draw docs/layers.svg: the layers of the source, the folders in each, and which folder imports which.

Everything is read from the import statements, so the picture cannot say what the code does not.

    .venv/bin/python .ci/draw_layers.py            # write the picture
    .venv/bin/python .ci/draw_layers.py --check    # exit with 1 if it is out of date
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "layers.svg"

# Rooms by row, from the top. A room imports from its own row and from those below; tests/test_layering.py enforces it.
ROWS = (("command line",), ("sim",), ("quantize", "runtime", "hw", "boards"), ("core",))
FOLDERS = {"quantize": "quantize", "runtime": "runtime", "hw": "hw", "boards": "boards", "sim": "sim"}
COMMAND_LINE = ("api", "cli", "demo", "__main__")
FACADE = "edgedec"  # edgedec/__init__.py names the Python API for type checkers; running it imports nothing
TITLES = {
    "command line": "edgedec/cli, edgedec/demo: commands and the demo",
    "sim": "sim/: the accelerator simulated, and proofs of it",
    "quantize": "quantize/: checkpoint to bundle",
    "runtime": "runtime/: bundle to text",
    "hw": "hw/: the accelerator's generator and compiler",
    "boards": "boards/: data of boards, build flows",
    "core": "edgedec/: graph, operations, reference, bundle, errors",
}

WIDTH, MARGIN, GAP = 1180, 20, 16
LINE, HEAD = 17, 30


def room_of(module: str) -> str:
    """Return the room of a module that is named as it is imported, such as ``edgedec.hw.isa.checks``."""
    parts = module.split(".")
    second = parts[1] if len(parts) > 1 else ""
    if second in FOLDERS:
        return second
    return "command line" if second in COMMAND_LINE else "core"


def modules() -> Iterator[tuple[str, Path]]:
    """Yield every module of the package, by the name that it is imported by."""
    for top in ("edgedec", *FOLDERS.values()):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = list(path.relative_to(ROOT).with_suffix("").parts)
            parts = parts if top == "edgedec" else ["edgedec", *parts]
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(path: Path) -> Iterator[str]:
    """Yield the edgedec modules that a file imports, once for each statement."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "edgedec")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "edgedec":
            if node.module == "edgedec":
                yield from (f"edgedec.{alias.name}" for alias in node.names)
            else:
                yield node.module


def arrows() -> set[tuple[str, str]]:
    """Return the pairs of rooms of which the first imports from the second; the facade of the Python API does not count."""
    pairs: set[tuple[str, str]] = set()
    for module, path in modules():
        if module == FACADE:
            continue
        here = room_of(module)
        pairs |= {(here, there) for there in map(room_of, imported(path)) if there != here}
    return pairs


def folders(room: str) -> list[str]:
    """Return the folders of a room, sorted; of the core those that are no room of their own."""
    tops = {"core": "edgedec", "command line": "edgedec"}
    base = ROOT / tops.get(room, room)
    names = sorted(path.parent.name for path in base.glob("*/__init__.py"))
    if room == "command line":
        return [name for name in names if name in COMMAND_LINE]
    if room == "core":
        return [name for name in names if name not in COMMAND_LINE]
    return names


def _wrapped(words: list[str], columns: int) -> list[str]:
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) + 1 > columns and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def draw() -> str:
    """Return the picture as SVG text."""
    boxes: dict[str, tuple[float, float, float, float]] = {}
    texts: list[str] = []
    top = float(MARGIN)
    for row in ROWS:
        wide = (WIDTH - 2 * MARGIN - GAP * (len(row) - 1)) / len(row)
        body = {room: _wrapped(folders(room), max(12, int(wide / 7.2))) for room in row}
        tall = HEAD + LINE * max(map(len, body.values())) + LINE * (1 + len(row) // 2)
        for at, room in enumerate(row):
            left = MARGIN + at * (wide + GAP)
            boxes[room] = left, top, wide, tall
            texts.append(_box(left, top, wide, tall, TITLES[room], body[room]))
        top += tall + 62
    pairs = arrows()
    lines = [_arrow(boxes[a], boxes[b]) for a, b in sorted(pairs) if b != "core"]
    users = [room for row in ROWS for room in row if (room, "core") in pairs]
    rest = "Every room" if len(users) == len(TITLES) - 1 else ", ".join(users)
    notes = [
        f'<text class="f" x="{MARGIN}" y="{top - 34:.0f}">An arrow leads from a room to one that it imports. '
        f"{rest} imports from edgedec/, which is not drawn.</text>"
    ]
    style = (
        "text{font-family:Helvetica,Arial,sans-serif;fill:#222}.t{font-size:13px;font-weight:bold}.f{font-size:12px}"
        ""
        "rect{fill:#f4f1ea;stroke:#8a7f6a}path{stroke:#48607a;fill:none;stroke-width:1.4}"
    )
    head = (
        '<defs><marker id="a" markerWidth="9" markerHeight="7" refX="8" refY="3.5" orient="auto">'
        '<path d="M0 0 L8 3.5 L0 7" /></marker></defs>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top - 16:.0f}" role="img">',
            "<title>The layers of edgedec, and what imports what</title>",
            f"<style>{style}</style>",
            f'<rect x="0" y="0" width="{WIDTH}" height="{top:.0f}" style="fill:#fff;stroke:none" />',
            head,
            *lines,
            *texts,
            *notes,
            "</svg>",
            "",
        ]
    )


def _box(left: float, top: float, wide: float, tall: float, title: str, body: list[str]) -> str:
    folder, _, what = title.partition(": ")
    lines = [
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall:.1f}" rx="6" />',
        f'<text class="t" x="{left + 10:.1f}" y="{top + 20:.1f}">{escape(folder)}</text>',
        f'<text class="f" x="{left + 10:.1f}" y="{top + 37:.1f}">{escape(what)}</text>',
    ]
    for at, line in enumerate(body):
        lines.append(f'<text class="f" x="{left + 10:.1f}" y="{top + 56 + LINE * at:.1f}">{escape(line)}</text>')
    return "\n".join(lines)


def _arrow(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> str:
    (ax, ay, aw, ah), (bx, by, bw, bh) = one, other
    if ay == by:  # in one row: an arc below the boxes
        side = 0.4 if ax < bx else 0.6
        x, y, end = ax + side * aw, ay + ah, bx + (1 - side) * bw
        depth = y + 16 + abs(x - end) / 18
        path = f"M{x:.1f} {y:.1f} C{x:.1f} {depth:.1f} {end:.1f} {depth:.1f} {end:.1f} {by + bh:.1f}"
        return f'<path d="{path}" marker-end="url(#a)" />'
    straight = bx + (0.3 if by - (ay + ah) > 70 else 0.7) * bw  # boxes are painted over arrows that pass behind them
    return f'<path d="M{straight:.1f} {ay + ah:.1f} L{straight:.1f} {by:.1f}" marker-end="url(#a)" />'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the picture is out of date")
    made = draw()
    if not parser.parse_args().check:
        PICTURE.write_text(made, "utf-8")
        return 0
    if PICTURE.is_file() and PICTURE.read_text("utf-8") == made:
        return 0
    print(f"{PICTURE.relative_to(ROOT)} is out of date: run .venv/bin/python .ci/draw_layers.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
