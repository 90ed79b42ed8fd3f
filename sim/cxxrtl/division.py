"""Cuts the C++ that CXXRTL writes into files of a size that compilers take.

All that happens in a cycle is one function, ``p_top::eval``, and a compiler's time and memory grow with its square: a
small accelerator's is 2 MB of text and not compiled in seven minutes. So it becomes many functions in files of their own,
called one after another; its local variables become members of the design. Where the text is not as expected it stays whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

__all__ = ["NAMESPACE", "divide"]

NAMESPACE = "edgedec_design"
_PART_CHARACTERS = 100_000  # some ten seconds of a compiler; less, and each file's headers cost more than its text
_HEAD = re.compile(r"\nbool p_top::eval\(performer \*performer\) \{\n")
_TAIL = "\treturn converged;\n}\n"
_DECLARATION = "\tbool eval(performer *performer = nullptr) override;\n"
_RESET = "\nvoid p_top::reset("
_LOCAL = re.compile(r"\tvalue<\d+> \w+;\n")
_EDGE = re.compile(r"\tbool (?:pos|neg)edge_\w+ = this->\w+\(\);\n")
_COMMENT = re.compile(r"\t//.*\n")
# Before each step of the function, where no variable of a step's own is alive.
_STEP = re.compile(r"^\t// (?:cells?|connections?|memory)\b", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class _Function:
    """``p_top::eval``. start, end: its place in the text."""

    start: int
    end: int
    flag: str
    edges: str
    locals: str
    steps: str


def divide(folder: Path) -> tuple[list[Path], list[Path]]:
    """Of design.cpp and design.h in ``folder``: files that run in each cycle, and one that does not; design.h is changed."""
    source, header = folder / "design.cpp", folder / "design.h"
    text, members = source.read_text("utf-8"), header.read_text("utf-8")
    function = _find(text)
    if function is None or text.count(_RESET) != 1 or members.count(_DECLARATION) != 1:
        return [source], []
    parts = _parts(function.steps)
    declared = "".join(f"\tvoid eval_{number}(performer *performer);\n" for number in range(len(parts)))
    header.write_text(members.replace(_DECLARATION, _DECLARATION + declared + function.locals), "utf-8")
    prefix = text[: text.index(_RESET)]
    files = []
    for number, steps in enumerate(parts):
        body = f"void p_top::eval_{number}(performer *performer) {{\n\t(void)performer;\n{function.edges}{steps}}}\n"
        files.append(folder / f"part_{number}.cpp")
        files[-1].write_text(f"{prefix}\n{body}\n}}\n", "utf-8")
    calls = "".join(f"\teval_{number}(performer);\n" for number in range(len(parts)))
    whole = f"\nbool p_top::eval(performer *performer) {{\n{function.flag}{calls}{_TAIL}"
    rest = folder / "rest.cpp"
    rest.write_text(text[: function.start] + whole + text[function.end :], "utf-8")
    return files, [rest]


def _find(text: str) -> _Function | None:
    head = _HEAD.search(text)
    end = text.find(_TAIL)
    if head is None or end < 0 or len(_HEAD.findall(text)) != 1 or text.count(_TAIL) != 1:
        return None
    flag, edges, variables = "", "", ""
    at = head.end()
    while not _STEP.match(text, at):
        line = text[at : text.index("\n", at) + 1]
        if re.fullmatch(r"\tbool converged = (true|false);\n", line):
            flag += line
        elif _EDGE.fullmatch(line):
            edges += line
        elif _LOCAL.fullmatch(line):
            variables += line
        elif not _COMMENT.fullmatch(line):
            return None
        at += len(line)
        if at >= end:
            return None
    steps = text[at:end]
    # A variable that is declared among the steps could be used in another part than its own.
    late = any(_LOCAL.fullmatch(f"{line}\n") for line in steps.split("\n"))
    if flag.count("\n") != 1 or "converged" in steps or late:
        return None
    return _Function(start=head.start(), end=end + len(_TAIL), flag=flag, edges=edges, locals=variables, steps=steps)


def _parts(steps: str) -> list[str]:
    """Neighbouring steps together, up to a part's size."""
    places = [match.start() for match in _STEP.finditer(steps)] + [len(steps)]
    cuts = [0]
    for begin, end in pairwise(places):
        if end - cuts[-1] > _PART_CHARACTERS and begin > cuts[-1]:
            cuts.append(begin)
    return [steps[begin:end] for begin, end in pairwise([*cuts, len(steps)])]
