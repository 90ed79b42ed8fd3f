"""Divide the C++ that CXXRTL writes into files that compilers can handle, and skip the parts that do not change.

CXXRTL writes a cycle as one function, ``p_top::eval``, and a compiler's time and memory grow with the square of its size:
that of a small accelerator has 2 MB of text and takes more than seven minutes to compile. It is therefore divided into many
functions in several files, and its local variables become members of the design. Each function runs only if something that
it reads has changed (see ``edgedec.sim.cxxrtl.activity``). Text that differs from the expected form is not divided.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedec.sim.cxxrtl.activity import Cycle, cycle_of
from edgedec.sim.cxxrtl.steps import STEP, UnexpectedTextError, grouped, read_steps

__all__ = ["NAMESPACE", "divide"]

NAMESPACE = "edgedec_design"
# Characters of a file. In smaller files the headers take longer than the text; a larger last file delays the others.
_PART_CHARACTERS = 250_000
_HEAD = re.compile(r"\nbool p_top::eval\(performer \*performer\) \{\n")
_TAIL = "\treturn converged;\n}\n"
_RUNTIME = "#include <cxxrtl/cxxrtl.h>\n"
_DECLARATION = "\tbool eval(performer *performer = nullptr) override;\n"
_COMMIT = re.compile(
    r"\tbool commit\(ObserverT &observer\) \{\n\t\tbool changed = false;\n(.*?)\t\treturn changed;\n\t\}\n", re.DOTALL
)
_COMMITTED = re.compile(r"\t\tif \((\w+)\.commit\(observer\)\) changed = true;\n")
_EDGE_BEFORE = re.compile(r"\t\tprev_\w+ = \w+;\n")
_END = "}; // struct p_top\n"
_RESET = "\nvoid p_top::reset() {\n"
_LOCAL = re.compile(r"\tvalue<\d+> \w+;\n")
_EDGE = re.compile(r"\tbool ((?:pos|neg)edge_\w+) = this->\w+\(\);\n")
_COMMENT = re.compile(r"\t//.*\n")


@dataclass(frozen=True, kw_only=True)
class _Function:
    """The parts of ``p_top::eval``; ``start`` and ``end`` are its place in the text."""

    start: int
    end: int
    flag: str
    edges: str
    locals: str
    steps: str


def divide(folder: Path) -> tuple[list[Path], list[Path]]:
    """Divide design.cpp in ``folder``, change design.h, and return (files of the cycle, files of everything else)."""
    source, header = folder / "design.cpp", folder / "design.h"
    text, members = source.read_text("utf-8"), header.read_text("utf-8")
    try:
        function = _find(text)
        steps = read_steps(function.steps)
        cycle = cycle_of(grouped(steps), function.edges, _EDGE.findall(function.edges))
        state = {name for step in steps for name in step.registers | step.memories}
        changed, commit = _members(members, function, cycle, state)
    except UnexpectedTextError:
        return [source], []
    header.write_text(changed, "utf-8")
    prefix = text[: text.index(_RESET)]
    observer = "\tobserver observer;\n\t(void)observer;\n"
    whole = (
        f"bool p_top::eval(performer *performer) {{\n{function.flag}{cycle.evaluate}{_TAIL}\n"
        f"bool p_top::commit_all() {{\n\tbool changed = false;\n{observer}{commit}{cycle.commit}\treturn changed;\n}}\n"
    )
    files = []
    for number, part in enumerate(_parts([*cycle.functions, whole])):
        files.append(folder / f"part_{number}.cpp")
        files[-1].write_text(f"{prefix}\n{part}\n}}\n", "utf-8")
    rest = folder / "rest.cpp"
    left = text[: function.start] + text[function.end :]
    rest.write_text(left.replace(_RESET, f"{_RESET}\tlast_edges = ~0u;\n"), "utf-8")
    return files, [rest]


def _find(text: str) -> _Function:
    head = _HEAD.search(text)
    end = text.find(_TAIL)
    if head is None or end < 0 or len(_HEAD.findall(text)) != 1 or text.count(_TAIL) != 1 or text.count(_RESET) != 1:
        raise UnexpectedTextError("p_top::eval and p_top::reset must occur once each")
    flag, edges, variables = "", "", ""
    at = head.end()
    while not STEP.match(text, at):
        line = text[at : text.index("\n", at) + 1]
        if re.fullmatch(r"\tbool converged = (true|false);\n", line):
            flag += line
        elif _EDGE.fullmatch(line):
            edges += line
        elif _LOCAL.fullmatch(line):
            variables += line
        elif not _COMMENT.fullmatch(line):
            raise UnexpectedTextError(f"before the first step: {line.strip()}")
        at += len(line)
        if at >= end:
            raise UnexpectedTextError("there are no steps")
    steps = text[at:end]
    # A variable that is declared among the steps could be used outside the function of its step.
    if flag.count("\n") != 1 or any(_LOCAL.fullmatch(f"{line}\n") for line in steps.split("\n")):
        raise UnexpectedTextError("a step declares a variable")
    return _Function(start=head.start(), end=end + len(_TAIL), flag=flag, edges=edges, locals=variables, steps=steps)


def _members(members: str, function: _Function, cycle: Cycle, state: set[str]) -> tuple[str, str]:
    """Return design.h with the members of the functions, and the statements of its commit that belong to no group."""
    commit = _COMMIT.search(members)
    once = (_RUNTIME, _DECLARATION, _END)
    if commit is None or len(_COMMIT.findall(members)) != 1 or any(members.count(text) != 1 for text in once):
        raise UnexpectedTextError("p_top's declaration")
    if state - set(_COMMITTED.findall(commit[1])) or _EDGE_BEFORE.sub("", _COMMITTED.sub("", commit[1])):
        raise UnexpectedTextError("the commit differs from the registers and memories that the steps set")
    kept = _COMMITTED.sub(lambda line: "" if line[1] in state else line[0], commit[1])
    ends = "\tbool commit(ObserverT &) {\n\t\treturn commit_all();\n\t}\n"
    changed = members[: commit.start()] + ends + members[commit.end() :]
    changed = changed.replace(_DECLARATION, _DECLARATION + cycle.members + function.locals)
    changed = changed.replace(_RUNTIME, _RUNTIME + '#include "values.hpp"\n')
    return changed.replace(_END, cycle.inputs + _END), kept


def _parts(functions: Sequence[str]) -> list[str]:
    """Join neighbouring functions up to the size of a file."""
    parts = [""]
    for function in functions:
        if parts[-1] and len(parts[-1]) + len(function) > _PART_CHARACTERS:
            parts.append("")
        parts[-1] += function
    return parts
