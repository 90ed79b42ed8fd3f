"""Write a netlist as design.h and design.cpp: a class around gates.hpp with the ports of a CXXRTL design."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedec.errors import UnsupportedError
from edgedec.sim.cxxrtl.division import NAMESPACE
from edgedec.sim.netlist.cells import NO_NET, ONE, ZERO, GateRow, MemoryContents, parts_of
from edgedec.sim.netlist.reader import Netlist, read_netlist

__all__ = ["FOLDER", "write_cells", "write_design"]

FOLDER = Path(__file__).resolve().parent
_BIG_MEMORY, _SMALL_MEMORY = 512, 16
_LINE = 32  # numbers in a line of a table


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """The arrays and the counts of struct Tables in gates.hpp."""

    arrays: Mapping[str, Sequence[int]]
    counts: Mapping[str, int]


def write_design(netlist: Path, folder: Path) -> Path:
    """Write design.h and design.cpp into ``folder``, and return the path of design.cpp.

    Args:
        netlist: file .il or .v with one module of cells of the ECP5.

    Raises:
        UsageError: the netlist cannot be read.
        UnsupportedError: a cell is not modelled, a clock is not an input, or cells feed back without a register.
        ToolError: yosys is missing or fails.
    """
    return write_cells(read_netlist(netlist), folder)


def write_cells(netlist: Netlist, folder: Path) -> Path:
    """Write the files of ``write_design`` for a netlist that was read already."""
    tables = _tables(netlist)
    (folder / "design.h").write_text(_header(netlist), "utf-8")
    source = folder / "design.cpp"
    source.write_text(_source(netlist, tables), "utf-8")
    return source


def _tables(netlist: Netlist) -> _Tables:
    parts, blocks, nets = _parts(netlist)
    combinational = _sorted([part for part in parts if part.clock is None])
    clocks: dict[tuple[int, bool], list[GateRow]] = defaultdict(list)
    for part in parts:
        if part.clock is not None:
            clocks[part.clock].append(part)
    known = {net for bits in netlist.inputs.values() for net in bits} | {ZERO, ONE}
    if any(net not in known for net, _ in clocks):
        raise UnsupportedError("a clock of the netlist is not one of its inputs; generate it outside the system")
    cells: list[int] = []

    def place(part: GateRow) -> int:
        cells.extend([part.kind, *part.inputs])
        cells.extend(nets if net == NO_NET else net for net in part.outputs)
        cells.extend(map(int, part.constants))
        return len(cells) - 1 - len(part.inputs) - len(part.outputs) - len(part.constants)

    order = [place(part) for part in combinational]
    clocked = [place(part) for of_clock in clocks.values() for part in of_clock]
    small = [block.words for block in blocks if len(block.words) == _SMALL_MEMORY]
    whole = [sum(word << 4 * number for number, word in enumerate(words)) for words in small]
    starts, contents = _contents([block.words for block in blocks if len(block.words) == _BIG_MEMORY])
    return _Tables(
        arrays={
            "cells": cells,
            "combinational": order,
            "clocks": [value for (net, inverted), of in clocks.items() for value in (net, int(inverted), len(of))],
            "clocked": clocked,
            "rams": _halves(whole),
            "blocks": starts,
            "contents": contents,
        },
        counts={
            "nets": nets + 1,
            "combinational": len(order),
            "clocks": len(clocks),
            "rams": len(small),
            "blocks": len(starts),
        },
    )


def _parts(netlist: Netlist) -> tuple[list[GateRow], list[MemoryContents], int]:
    """Return (rows of all cells, memories in the order of their numbers, number of nets including those of carries)."""
    parts: list[GateRow] = []
    blocks: list[MemoryContents] = []
    counts: dict[str, int] = defaultdict(int)
    nets = netlist.nets
    for cell in netlist.cells:
        # The two halves of a carry have a net between them.
        number = counts[cell.kind] if cell.kind != "CCU2C" else nets
        nets += cell.kind == "CCU2C"
        counts[cell.kind] += 1
        for part in parts_of(cell, number):
            (parts if isinstance(part, GateRow) else blocks).append(part)  # type: ignore[arg-type]
    return parts, blocks, nets


def _sorted(parts: Sequence[GateRow]) -> list[GateRow]:
    """Return the rows in an order in which the inputs of each are computed before it.

    Raises:
        UnsupportedError: there is no such order.
    """
    users: dict[int, list[int]] = defaultdict(list)
    driven: dict[int, int] = defaultdict(int)  # net -> number of rows that set it and are not in the order yet
    for part in parts:
        for net in {net for net in part.outputs if net != NO_NET}:
            driven[net] += 1
    waits = [len({net for net in part.inputs if driven.get(net)}) for part in parts]
    for number, part in enumerate(parts):
        for net in set(part.inputs):
            users[net].append(number)
    ready = [number for number, count in enumerate(waits) if not count]
    order = []
    while ready:
        number = ready.pop()
        order.append(parts[number])
        for net in {net for net in parts[number].outputs if net != NO_NET}:
            driven[net] -= 1
            if driven[net]:
                continue
            for user in users[net]:
                waits[user] -= 1
                if not waits[user]:
                    ready.append(user)
    if len(order) < len(parts):
        raise UnsupportedError(f"{len(parts) - len(order)} cells of the netlist feed back without a register")
    return order


def _contents(blocks: Iterable[tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """Return (start of each memory plus one, or 0 if it holds zeros; contents of the other memories)."""
    starts: list[int] = []
    contents: list[int] = []
    for words in blocks:
        starts.append(len(contents) + 1 if any(words) else 0)
        contents += _halves(words) if any(words) else []
    return starts, contents


def _halves(words: Iterable[int]) -> list[int]:
    return [half for word in words for half in (word & 0xFFFFFFFF, word >> 32)]


def _header(netlist: Netlist) -> str:
    ports = netlist.inputs | netlist.outputs
    members = "".join(f"    cxxrtl::value<{len(bits)}> {_mangled(name)};\n" for name, bits in ports.items())
    before = "".join(
        f"    cxxrtl::value<1> prev_{_mangled(name)};\n" for name, bits in netlist.inputs.items() if len(bits) == 1
    )
    return f"""#pragma once
#include <cxxrtl/cxxrtl.h>

#include "gates.hpp"

namespace {NAMESPACE} {{

// The interface of CXXRTL's class; only step() has an effect.
struct p_top {{
{members}{before}
    p_top();
    bool eval() {{ return false; }}
    bool commit() {{ return false; }}
    void step();

private:
    edgedec::netlist::Gates gates_;
}};

}}  // namespace {NAMESPACE}
"""


def _source(netlist: Netlist, tables: _Tables) -> str:
    arrays = "".join(_array(name, values) for name, values in tables.arrays.items())
    count = tables.counts
    tables_text = (
        f"{count['nets']}, cells, combinational, {count['combinational']}, clocks, {count['clocks']}, clocked, "
        f"rams, {count['rams']}, blocks, {count['blocks']}, contents"
    )
    ports = "".join(_array(f"port_{_mangled(name)}", bits) for name, bits in (netlist.inputs | netlist.outputs).items())
    puts = "".join(f"    put(gates_, {_mangled(name)}, port_{_mangled(name)});\n" for name in netlist.inputs)
    gets = "".join(f"    get(gates_, {_mangled(name)}, port_{_mangled(name)});\n" for name in netlist.outputs)
    return f"""#include "design.h"

namespace {NAMESPACE} {{
namespace {{

{arrays}{ports}
template <size_t N>
void put(edgedec::netlist::Gates& gates, const cxxrtl::value<N>& port, const uint32_t* nets) {{
    for (size_t n = 0; n < N; ++n) gates.set(nets[n], port.data[n / 32] >> (n % 32) & 1);
}}

template <size_t N>
void get(const edgedec::netlist::Gates& gates, cxxrtl::value<N>& port, const uint32_t* nets) {{
    for (size_t n = 0; n < port.chunks; ++n) port.data[n] = 0;
    for (size_t n = 0; n < N; ++n) port.data[n / 32] |= uint32_t{{gates.get(nets[n])}} << (n % 32);
}}

}}  // namespace

p_top::p_top() : gates_({{{tables_text}}}) {{}}

void p_top::step() {{
{puts}    gates_.step();
{gets}}}

}}  // namespace {NAMESPACE}
"""


def _array(name: str, values: Sequence[int]) -> str:
    lines = (",".join(map(str, values[at : at + _LINE])) for at in range(0, len(values), _LINE))
    text = ",\n".join(lines) or "0"
    return f"const uint32_t {name}[] = {{\n{text}}};\n"


def _mangled(name: str) -> str:
    """Return the name that CXXRTL gives to a port."""
    escaped = re.sub(r"\W", lambda match: f"_{ord(match[0]):x}_", name.replace("_", "__"))
    return f"p_{escaped}"
