"""The data path as a picture, drawn from a configuration: ``python -m edgedec.hw.plan.diagram > docs/data-path.svg``."""

import sys
from dataclasses import dataclass
from xml.sax.saxutils import escape

from edgedec.hw.config import ROWS, AcceleratorConfig

__all__ = ["svg"]

_WIDTH, _HEIGHT = 1180, 700  # size of the picture in pixels
_BOX_WIDTH, _LINE = 180, 17  # width of a box and height of a line in pixels
_COLOURS = {"memory": "#dbe9f6", "unit": "#f4ecd8", "control": "#e3efdd", "port": "#eeeeee"}  # fill of each kind of box


@dataclass(frozen=True)
class _Box:
    """A box with its corner at (x, y), in pixels; the first line is its name."""

    x: int
    y: int
    kind: str
    lines: tuple[str, ...]

    @property
    def height(self) -> int:
        return 14 + _LINE * len(self.lines)

    def side(self, name: str) -> tuple[int, int]:
        """Return the middle of the left, right, top or bottom side."""
        middle = self.y + self.height // 2
        return {
            "left": (self.x, middle),
            "right": (self.x + _BOX_WIDTH, middle),
            "top": (self.x + _BOX_WIDTH // 2, self.y),
            "bottom": (self.x + _BOX_WIDTH // 2, self.y + self.height),
        }[name]


def _boxes(config: AcceleratorConfig) -> dict[str, _Box]:
    slots, size = config.slots, config.beat_bytes
    return {
        "read": _Box(20, 40, "port", (f"{config.ports} AXI read ports", f"{config.port_bytes} B each")),
        "prefetch": _Box(260, 40, "memory", ("Prefetcher", f"{config.prefetch_beats} beats ahead")),
        "router": _Box(500, 40, "control", ("Router", f"{size} B a cycle")),
        "constants": _Box(740, 40, "memory", ("Constants", "gains, rows, coding, scales")),
        "control": _Box(260, 140, "control", ("Command processor", f"{config.instructions} instructions of 32 B")),
        "registers": _Box(20, 140, "control", ("Registers", "AXI4-Lite")),
        "engine": _Box(
            500,
            250,
            "unit",
            ("Lookup engine", f"{config.groups} tables x {slots} slots", f"{ROWS} rows x {size} columns"),
        ),
        "mac": _Box(740, 250, "unit", ("MAC array", f"{size} x {slots} products", "int8 rows, Q.K, P.V")),
        "sums": _Box(500, 370, "memory", ("Partial sums", f"{config.tile_rows} rows x {slots} x 32 bits")),
        "drain": _Box(500, 460, "unit", ("Drain", f"{slots} elements a cycle", "scale, bias, saturation")),
        "codes": _Box(260, 250, "memory", ("Code memory", f"{config.depth} blocks of {size} columns")),
        "quantize": _Box(260, 370, "unit", ("Norm, requantizer", f"{max(config.width, config.hidden)} elements kept")),
        "residual": _Box(260, 480, "memory", ("Residual", f"{config.hidden} elements x s27")),
        "gate": _Box(500, 580, "unit", ("Gated activation", "SiLU or ReLU squared")),
        "attention": _Box(
            980, 250, "unit", ("Attention", f"{config.heads} heads of {config.head_dim}", "exact maximum, tree mask")
        ),
        "coder": _Box(740, 460, "unit", ("Rotary, coder", f"{slots} elements a cycle")),
        "logits": _Box(740, 580, "unit", ("Logits", f"{config.top_k} likeliest, rows")),
        "writer": _Box(980, 580, "port", ("Writer", f"1 AXI write port, {config.port_bytes} B")),
    }


_ARROWS = (  # source and its side, sink and its side
    ("read", "right", "prefetch", "left"),
    ("prefetch", "right", "router", "left"),
    ("router", "right", "constants", "left"),
    ("registers", "right", "control", "left"),
    ("control", "top", "prefetch", "bottom"),
    ("router", "bottom", "engine", "top"),
    ("router", "bottom", "mac", "top"),
    ("router", "bottom", "attention", "top"),
    ("codes", "right", "engine", "left"),
    ("engine", "bottom", "sums", "top"),
    ("mac", "bottom", "sums", "right"),
    ("attention", "left", "mac", "right"),
    ("sums", "bottom", "drain", "top"),
    ("drain", "left", "residual", "right"),
    ("drain", "bottom", "gate", "top"),
    ("drain", "right", "coder", "left"),
    ("drain", "right", "logits", "left"),
    ("coder", "right", "attention", "bottom"),
    ("attention", "bottom", "writer", "top"),
    ("logits", "right", "writer", "left"),
    ("residual", "top", "quantize", "bottom"),
    ("gate", "left", "quantize", "left"),
    ("quantize", "top", "codes", "bottom"),
)


def svg(config: AcceleratorConfig) -> str:
    """Return the text of an SVG file."""
    boxes = _boxes(config)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="13">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for source, leaves, sink, enters in _ARROWS:
        points = _path(boxes[source].side(leaves), leaves, boxes[sink].side(enters), enters)
        lines.append(f'<polyline points="{points}" fill="none" stroke="#444" marker-end="url(#tip)"/>')
    for box in boxes.values():
        lines.append(
            f'<rect x="{box.x}" y="{box.y}" width="{_BOX_WIDTH}" height="{box.height}" rx="4" '
            f'fill="{_COLOURS[box.kind]}" stroke="#444"/>'
        )
        for number, text in enumerate(box.lines):
            weight = ' font-weight="bold"' if number == 0 else ""
            y = box.y + 20 + _LINE * number
            lines.append(f'<text x="{box.x + 10}" y="{y}"{weight}>{escape(text)}</text>')
    lines.append(
        f'<text x="20" y="{_HEIGHT - 14}">attention and gated activation go to the quantizer as the residual does; keys and '
        "values come with the read stream; configuration "
        f"{config.hash:016x}</text>"
    )
    return "\n".join([*lines, "</svg>", ""])


def _path(start: tuple[int, int], leaves: str, end: tuple[int, int], enters: str) -> str:
    """Return the corners of a line that leaves and enters at right angles."""
    (x, y), (u, v) = start, end
    across, into = leaves in ("left", "right"), enters in ("left", "right")
    if across and into:
        middle = (x + u) // 2 if leaves != enters else min(x, u) - 20
        corners = [(x, y), (middle, y), (middle, v), (u, v)]
    elif across:
        corners = [(x, y), (u, y), (u, v)]
    elif into:
        corners = [(x, y), (x, v), (u, v)]
    else:
        middle = (y + v) // 2
        corners = [(x, y), (x, middle), (u, middle), (u, v)]
    return " ".join(f"{a},{b}" for a, b in corners)


if __name__ == "__main__":
    sys.stdout.write(svg(AcceleratorConfig()))
