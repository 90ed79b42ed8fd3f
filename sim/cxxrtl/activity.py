"""Turn the steps of a cycle into functions that run only if their inputs have changed.

A group of steps is a function of the values, registers, memories and inputs that it reads. If none of them has changed
since the group ran, running it again would set the same values: it would set a register's next value to its present one,
and a word of a memory to its contents. Every change therefore marks the groups that read the changed item: the function
that sets a value marks its readers at once, registers and memories mark them at the end of the cycle, and inputs before it
begins. A group that sets registers and memories of one clock keeps its mark until that clock has an edge. A group with
several clocks, or with a clock and a value, is also marked whenever the set of clocks with an edge changes. In most cycles
of an accelerator most of the design does not change.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgedec.sim.cxxrtl.steps import CycleStep

__all__ = ["Cycle", "cycle_of"]

_TOGETHER = 8  # marks that are tested as one number
_WORD = re.compile(r"\b(?:pos|neg)edge_\w+")
_UPDATE = re.compile(r"\b(memory_[pi]_\w+)\.update\(")


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """C++ text for the class p_top.

    Members:
        members: declarations that depend on no others.
        inputs: declarations that must follow those of the ports.
        functions: definitions of each group's functions.
        evaluate, commit: bodies of the functions that call them, without the final ``return``; they use the variables
            ``performer`` and ``changed``.
    """

    members: str
    inputs: str
    functions: tuple[str, ...]
    evaluate: str
    commit: str


def cycle_of(groups: Sequence[Sequence[CycleStep]], edges: str, flags: Sequence[str]) -> Cycle:
    """Return the C++ of a cycle that consists of groups of steps.

    Args:
        groups: groups in the order in which they run.
        edges: declarations of the variables ``flags``.
        flags: names of variables that are true if a clock has an edge in this cycle, one for each edge.
    """
    readers: dict[str, set[int]] = defaultdict(set)
    for number, group in enumerate(groups):
        for name in _union(step.reads for step in group):
            readers[name].add(number)
    values = _union(step.values for group in groups for step in group)
    states = _union(step.registers | step.memories for group in groups for step in group)
    inputs = sorted(
        name
        for name in readers
        if name not in values and name not in states and not name.startswith("memory_") and not name.endswith(".curr")
    )
    count = -(-len(groups) // _TOGETHER) * _TOGETHER
    functions = [_functions(number, group, edges, readers) for number, group in enumerate(groups)]
    clocks = [_flags(group, flags) for group in groups]
    mixed = [
        number
        for number, (group, own) in enumerate(zip(groups, clocks, strict=True))
        if len(own) > 1 or (own and any(step.values for step in group))
    ]
    gates = ["" if number in mixed else "".join(f" && {flag}" for flag in own) for number, own in enumerate(clocks)]
    now = " | ".join(f"unsigned{{{flag}}} << {place}" for place, flag in enumerate(flags)) or "0u"
    watched = "".join(_if_changed(f"seen_{name}", name, f"seen_{name} = {name}; ", readers[name]) for name in inputs)
    return Cycle(
        members=_members(count, len(groups)),
        inputs="".join(f"\tdecltype({name}) seen_{name};\n" for name in inputs),
        functions=tuple(functions),
        evaluate=(
            f"{edges}\tconst unsigned edges_now = {now};\n"
            "\tif (edges_now != last_edges) {\n"
            "\t\tif (last_edges == ~0u) std::memset(marked, 1, sizeof marked);\n"
            "\t\tlast_edges = edges_now;\n"
            f"\t\t{_mark(mixed)}\n"
            "\t}\n"
            f"{watched}{_marked([_evaluated(number, group, gates[number]) for number, group in enumerate(groups)])}"
        ),
        commit=_COMMIT.format(", ".join(f"&p_top::commit_{number}" for number in range(len(groups)))),
    )


_COMMIT = (
    "\tstatic void (p_top::*const commits[])() = {{{}}};\n"
    "\tchanged |= ran_count != 0;\n"
    "\tfor (unsigned number = 0; number < ran_count; ++number) {{\n"
    "\t\thas_run[ran_list[number]] = 0;\n"
    "\t\t(this->*commits[ran_list[number]])();\n"
    "\t}}\n"
    "\tran_count = 0;\n"
)


def _evaluated(number: int, group: Sequence[CycleStep], gate: str) -> str:
    """Return the call of a group. A group that sets values only has nothing to commit at the end of the cycle."""
    noted = f"ran({number}); " if any(step.registers or step.memories for step in group) else ""
    return f"\t\tif (marked[{number}]{gate}) {{ marked[{number}] = 0; {noted}eval_{number}(performer); }}\n"


def _members(count: int, groups: int) -> str:
    """Return the declarations of ``count`` marks. Marks beyond the number of groups have no group to run."""
    lines = [
        "\tbool commit_all();",
        "\tstatic bool any(const unsigned char *marks) {",
        "\t\tuint64_t together;",
        "\t\tstd::memcpy(&together, marks, sizeof together);",
        "\t\treturn together != 0;",
        "\t}",
        f"\talignas(8) unsigned char marked[{count}] = {{}}, has_run[{count}] = {{}};",
        f"\tunsigned ran_list[{count}], ran_count = 0;",
        "\tvoid ran(unsigned number) {",
        "\t\tif (has_run[number]) return;",
        "\t\thas_run[number] = 1;",
        "\t\tran_list[ran_count++] = number;",
        "\t}",
        "\tunsigned last_edges = ~0u;  // a value that no cycle has",
    ]
    for number in range(groups):
        lines += [f"\tvoid eval_{number}(performer *performer);", f"\tvoid commit_{number}();"]
    return "\n".join(lines) + "\n"


def _flags(group: Sequence[CycleStep], known: Sequence[str]) -> list[str]:
    """Return the flags of the clocks of a group."""
    used = {word for step in group for word in _WORD.findall(step.text)}
    return [flag for flag in known if flag in used]


def _marked(lines: Sequence[str]) -> str:
    """Return the lines of all groups, with one test for several neighbouring groups, which are mostly unmarked."""
    text = ""
    for first in range(0, len(lines), _TOGETHER):
        text += f"\tif (any(marked + {first})) {{\n{''.join(lines[first : first + _TOGETHER])}\t}}\n"
    return text


def _functions(number: int, group: Sequence[CycleStep], edges: str, readers: Mapping[str, set[int]]) -> str:
    """Return the functions of one group. They mark only later groups, because no earlier group reads its values."""
    text = "".join(_UPDATE.sub(r"edgedec::values::write(\1, ", step.text) for step in group)
    values = sorted(name for name in _union(step.values for step in group) if max(readers.get(name, [0])) > number)
    before = "".join(f"\tconst auto old_{place} = {name};\n" for place, name in enumerate(values))
    after = "".join(
        _if_changed(f"old_{place}", name, "", {reader for reader in readers[name] if reader > number})
        for place, name in enumerate(values)
    )
    commit = "".join(
        _if_changed(f"{name}.curr", f"{name}.next", f"{name}.curr = {name}.next; ", readers.get(f"{name}.curr", ()))
        for name in sorted(_union(step.registers for step in group))
    )
    for name in sorted(_union(step.memories for step in group)):
        commit += f"\tif (!{name}.write_queue.empty() && {name}.commit(observer)) {{ {_mark(readers.get(name, ()))}}}\n"
    return (
        f"void p_top::eval_{number}(performer *performer) {{\n\t(void)performer;\n{edges}{before}{text}{after}}}\n"
        f"void p_top::commit_{number}() {{\n\tobserver observer;\n\t(void)observer;\n{commit}}}\n"
    )


def _if_changed(old: str, new: str, more: str, readers: Iterable[int]) -> str:
    return f"\tif ({old} != {new}) {{ {more}{_mark(readers)}}}\n"


def _mark(readers: Iterable[int]) -> str:
    return "".join(f"marked[{number}] = 1; " for number in sorted(readers))


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)
