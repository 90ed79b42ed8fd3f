"""Count levels of logic and loads in a netlist of 7-series cells, as yosys writes it as JSON.

One level is a LUT with the wire to it: 420 ps, the mean of a LUT6's inputs, and 300 ps, the wire that yosys' abc9 assumes.
Five levels and a flip-flop's 303 ps take 3.9 ns. Carry chains, wide multiplexers, DSPs and block RAMs count by their own
delay against that; where no LUT of the slice drives them, by the wire too.

Source: the delays of speed grade -1 in yosys' techlibs/xilinx/cells_sim.v, which come from Project X-Ray.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LEVEL_PS", "MOST_LEVELS", "MOST_LOADS", "LevelCount", "Loads", "Path", "measure_netlist"]

LEVEL_PS = 720  # a LUT6 and the wire to it
_WIRE_PS = 300
MOST_LEVELS = 5.0  # gate: levels of an endpoint
MOST_LOADS = 2000  # gate: loads of a register
_SHOWN = 10  # paths and registers in a report

_CLK_TO_Q = 303
_RAM_OUT = (2454 - _CLK_TO_Q) / LEVEL_PS  # levels of a block RAM without an output register
_RAM_OUT_REGISTERED = (882 - _CLK_TO_Q) / LEVEL_PS
_LUT_RAM_OUT = (1161 - _CLK_TO_Q) / LEVEL_PS  # levels from the clock to the output of a memory in LUTs

# Delays of a CARRY4 in ps: input -> to O[0..3], and to CO[0..3]; None where there is no path.
_CARRY: Mapping[str, tuple[tuple[int | None, ...], tuple[int | None, ...]]] = {
    "CYINIT": ((482, 598, 584, 642), (536, 494, 592, 580)),
    "CI": ((222, 334, 239, 313), (271, 157, 228, 114)),
    "S0": ((223, 400, 523, 582), (340, 433, 512, 508)),
    "S1": ((None, 205, 558, 618), (None, 469, 548, 528)),
    "S2": ((None, None, 226, 330), (None, None, 292, 378)),
    "S3": ((None, None, None, 227), (None, None, None, 380)),
    "DI0": ((None, 407, 556, 615), (379, 465, 540, 526)),
    "DI1": ((None, None, 537, 596), (None, 445, 520, 507)),
    "DI2": ((None, None, None, 438), (None, None, 356, 398)),
    "DI3": ((None, None, None, None), (None, None, None, 385)),
}
_MUX: Mapping[str, Mapping[str, int]] = {
    "MUXF7": {"I0": 217, "I1": 223, "S": 296},
    "MUXF8": {"I0": 104, "I1": 94, "S": 273},
}
_FLIP_FLOP = re.compile(r"FD[RSCP]E(_1)?")
_SHIFT_REGISTER = re.compile(r"SRL(16E|C32E|C16E|16)")
_LUT_RAM = re.compile(r"RAM(16|32|64|128|256)(X\d+[DS]|M)(_1)?")
_BLOCK_RAM = re.compile(r"RAMB(18|36)E\d")
_CLOCKS = frozenset({"C", "CLK", "WCLK", "CLKARDCLK", "CLKBWRCLK", "REGCLKARDRCLK", "REGCLKB"})
_CONTROL = frozenset({"CE", "R", "S", "CLR", "PRE"})  # pins of a flip-flop that are named in a path

Bit = int | str


@dataclass(frozen=True, kw_only=True)
class Path:
    """The longest path between two registers.

    Members:
        levels: its levels.
        start: name of the register, port or memory where it begins.
        end: name of the register, port or memory where it ends; with the pin, if that is a control.
        cells: its cells in order, as "LUT CARRY4x7 LUT".
        through: readable names of nets on the way.
    """

    levels: float
    start: str
    end: str
    cells: str
    through: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Loads:
    """The loads of a net: pins of cells that it drives, except clocks."""

    name: str
    loads: int


@dataclass(frozen=True, kw_only=True)
class LevelCount:
    """Levels and loads of a netlist.

    Members:
        worst: levels of the worst endpoint.
        excess: endpoints above ``MOST_LEVELS``; every pin and bit is one.
        endpoints: all endpoints.
        paths: the worst paths, at most one for each pair of start and end.
        register_loads: the registers with the most loads.
        net_loads: the nets with the most loads that no register drives; the reset is left out.
    """

    worst: float
    excess: int
    endpoints: int
    paths: tuple[Path, ...]
    register_loads: tuple[Loads, ...]
    net_loads: tuple[Loads, ...]


@dataclass
class _Netlist:
    """Arcs and ends of a netlist.

    Members:
        arcs: bit -> (levels, input bit, cell) of everything it depends on.
        starts: bit -> levels at which it starts.
        ends: (bit, levels after it, name of the cell's output or port, pin).
        registers: output of each register -> its input.
        loads: bit -> pins that it drives.
    """

    arcs: dict[Bit, list[tuple[float, Bit, str]]] = field(default_factory=dict)
    starts: dict[Bit, float] = field(default_factory=dict)
    ends: list[tuple[Bit, float, Bit | str, str]] = field(default_factory=list)
    registers: dict[Bit, Bit] = field(default_factory=dict)
    loads: Counter[Bit] = field(default_factory=Counter)


def measure_netlist(module: Mapping[str, Any]) -> LevelCount:
    """Return the levels and loads of a flat module of yosys' JSON.

    Raises:
        ValueError: the netlist has a combinational loop, or a cell that is not of 7-series devices.
    """
    netlist = _Netlist()
    inputs = {
        bit: name for name, port in module["ports"].items() if port["direction"] == "input" for bit in port["bits"]
    }
    netlist.starts.update(dict.fromkeys(inputs, 0.0))
    for name, cell in module["cells"].items():
        if cell["type"] != "$scopeinfo":
            _add_cell(netlist, name, cell)
    for name, port in module["ports"].items():
        if port["direction"] == "output":
            netlist.ends += [(bit, 0.0, name, "") for bit in port["bits"]]
    arrival, came = _arrivals(netlist)
    names = _readable(module["netnames"], netlist.registers)
    ends = sorted(
        ((arrival[bit] + after, bit, to, pin) for bit, after, to, pin in netlist.ends if bit in arrival),
        key=lambda end: -end[0],
    )
    without = {bit for bit, name in inputs.items() if name in ("clk", "rst")}
    return LevelCount(
        worst=round(ends[0][0], 1) if ends else 0.0,
        excess=sum(levels > MOST_LEVELS for levels, *_ in ends),
        endpoints=len(ends),
        paths=tuple(_paths(ends, came, names)),
        register_loads=_most(netlist.loads, names, netlist.registers),
        net_loads=_most(netlist.loads, names, netlist.loads.keys() - netlist.registers.keys() - without),
    )


def _add_cell(netlist: _Netlist, name: str, cell: Mapping[str, Any]) -> None:
    kind, pins = cell["type"], cell["connections"]
    directions = cell["port_directions"]
    for pin, bits in pins.items():
        if directions[pin] == "input" and pin not in _CLOCKS:
            netlist.loads.update(bit for bit in bits if isinstance(bit, int))
    if kind.startswith("LUT") or kind == "INV":
        _add_lut(netlist, pins, directions)
    elif kind == "CARRY4":
        _add_carry(netlist, pins)
    elif kind in _MUX:
        arcs = [((delay + _WIRE_PS * (pin == "S")) / LEVEL_PS, pins[pin][0], kind) for pin, delay in _MUX[kind].items()]
        netlist.arcs.setdefault(pins["O"][0], []).extend(arcs)
    elif _FLIP_FLOP.fullmatch(kind):
        _add_register(netlist, pins, ("Q",), directions)
    elif _SHIFT_REGISTER.fullmatch(
        kind
    ):  # vendors' tools keep the last stage as a flip-flop, so its output starts at 0
        _add_register(netlist, pins, ("Q", "Q15", "Q31"), directions)
    elif _LUT_RAM.fullmatch(kind):
        _add_lut_ram(netlist, pins, directions)
    elif _BLOCK_RAM.fullmatch(kind):
        _add_block_ram(netlist, cell)
    elif kind.startswith("DSP48"):
        _add_dsp(netlist, cell)
    else:
        for pin, bits in pins.items():  # a black box, such as a part of the logic that joins the parts
            if directions[pin] == "output":
                netlist.starts.update((bit, 0.0) for bit in bits)
            else:
                netlist.ends += [(bit, 0.0, f"{kind.removeprefix('part_')}.{pin}", "") for bit in bits]


def _add_lut(netlist: _Netlist, pins: Mapping[str, Any], directions: Mapping[str, str]) -> None:
    inputs = [bits[0] for pin, bits in pins.items() if directions[pin] == "input"]
    netlist.arcs.setdefault(pins["O"][0], []).extend((1.0, bit, "LUT") for bit in inputs)


def _add_carry(netlist: _Netlist, pins: Mapping[str, Any]) -> None:
    for source, (to_o, to_co) in _CARRY.items():
        pin, at = (source, 0) if source in ("CI", "CYINIT") else (source[:-1], int(source[-1]))
        bits = pins.get(pin, ())
        if at >= len(bits):
            continue
        wire = _WIRE_PS if pin in ("DI", "CYINIT") else 0  # a LUT of the slice drives S
        for output, delays in (("O", to_o), ("CO", to_co)):
            for bit, delay in zip(pins.get(output, ()), delays, strict=False):
                if delay is not None:
                    netlist.arcs.setdefault(bit, []).append(((delay + wire) / LEVEL_PS, bits[at], "CARRY4"))


def _add_register(
    netlist: _Netlist, pins: Mapping[str, Any], outputs: Iterable[str], directions: Mapping[str, str]
) -> None:
    bits = [bit for output in outputs for bit in pins.get(output, ())]
    netlist.starts.update(dict.fromkeys(bits, 0.0))
    netlist.registers.update(dict.fromkeys(bits, pins["D"][0]))
    for pin, inputs in pins.items():
        if directions[pin] == "input" and pin not in _CLOCKS and bits:
            netlist.ends.append((inputs[0], 0.0, bits[0], pin if pin in _CONTROL else ""))


def _add_lut_ram(netlist: _Netlist, pins: Mapping[str, Any], directions: Mapping[str, str]) -> None:
    """Add a memory in LUTs: an output depends on the address of its own letter, or on the second address."""
    outputs = {pin: bits for pin, bits in pins.items() if directions[pin] == "output"}
    first = next(iter(outputs.values()))[0]
    for pin, bits in outputs.items():
        address = f"ADDR{pin[2]}" if pin.startswith("DO") else ("DPRA" if pin.startswith("DP") else "A")
        read = [one for name, found in pins.items() if re.fullmatch(rf"{address}\d*", name) for one in found]
        for bit in bits:
            netlist.starts[bit] = _LUT_RAM_OUT
            netlist.arcs.setdefault(bit, []).extend((1.0, one, "LUTRAM") for one in read)
    for pin, bits in pins.items():
        if directions[pin] == "input" and pin not in _CLOCKS:
            netlist.ends += [(bit, 0.0, first, pin) for bit in bits]


def _add_block_ram(netlist: _Netlist, cell: Mapping[str, Any]) -> None:
    pins, directions = cell["connections"], cell["port_directions"]
    outputs = {pin: bits for pin, bits in pins.items() if directions[pin] == "output"}
    first = next((bit for bits in outputs.values() for bit in bits), "")
    for pin, bits in outputs.items():
        registered = int(str(cell["parameters"].get("DOA_REG" if "A" in pin else "DOB_REG", "0")), 2)
        netlist.starts.update((bit, _RAM_OUT_REGISTERED if registered else _RAM_OUT) for bit in bits)
    for pin, bits in pins.items():
        if directions[pin] == "input" and pin not in _CLOCKS:
            netlist.ends += [(bit, 0.0, first, pin) for bit in bits]


def _add_dsp(netlist: _Netlist, cell: Mapping[str, Any]) -> None:
    """Add a multiplier, with the registers that synthesis put into it."""
    pins, directions = cell["connections"], cell["port_directions"]
    registers = {
        name: int(str(cell["parameters"].get(f"{name}REG", "0")), 2) for name in ("A", "B", "C", "D", "AD", "M", "P")
    }
    outputs = {pin: bits for pin, bits in pins.items() if directions[pin] == "output"}
    first = next((bit for bits in outputs.values() for bit in bits), "")
    for pin, bits in outputs.items():
        cascade = 148 if pin == "PCOUT" else 0
        start = _dsp_start(registers)
        for bit in bits:
            if start is not None:
                netlist.starts[bit] = (start + cascade - _CLK_TO_Q) / LEVEL_PS
            if not registers["P"]:
                for source, delay in (("A", 2823), ("B", 2690), ("C", 1325), ("D", 3717), ("PCIN", 1107)):
                    if not registers.get(source) and not (registers["M"] and source not in ("C", "PCIN")):
                        arcs = [((delay + cascade) / LEVEL_PS, one, "DSP") for one in pins.get(source, ())]
                        netlist.arcs.setdefault(bit, []).extend(arcs)
    for pin, bits in pins.items():
        if directions[pin] == "input" and pin not in _CLOCKS:
            setup = _dsp_setup(pin, registers)
            if setup is not None:
                netlist.ends += [(bit, setup / LEVEL_PS, first, pin) for bit in bits]


def _dsp_start(registers: Mapping[str, int]) -> int | None:
    """Return the time in ps from the clock to P; None if no register is inside."""
    for name, delay in (("P", 329), ("A", 2952), ("B", 2813), ("C", 1687), ("M", 1671)):
        if registers[name] and not (registers["M"] and name in "AB"):
            return delay
    return None


def _dsp_setup(pin: str, registers: Mapping[str, int]) -> int | None:
    """Return the time in ps from a pin to the register after it; None if there is none."""
    if registers.get(pin):
        return 0
    if pin in ("A", "B", "D") and registers["M"]:
        return {"A": 1416, "B": 1285, "D": 2310}[pin]
    late = {"A": 2739, "B": 2608, "C": 1244, "D": 3635, "PCIN": 1025}
    if pin in late:
        return late[pin] if registers["P"] else None
    return 0


def _arrivals(netlist: _Netlist) -> tuple[dict[Bit, float], dict[Bit, tuple[Bit, str]]]:
    """Return for each bit its levels, and the bit and cell before it on its longest path."""
    arrival: dict[Bit, float] = {}
    came: dict[Bit, tuple[Bit, str]] = {}
    open_bits: set[Bit] = set()
    for target in list(netlist.arcs):
        stack = [target]
        while stack:
            bit = stack[-1]
            if bit in arrival:
                stack.pop()
                continue
            arcs = netlist.arcs.get(bit, [])
            waiting = [one for _, one, _ in arcs if one not in arrival and one in netlist.arcs]
            if waiting:
                if bit in open_bits:
                    raise ValueError(f"the netlist has a combinational loop at bit {bit}")
                open_bits.add(bit)
                stack += waiting
                continue
            stack.pop()
            open_bits.discard(bit)
            best = netlist.starts.get(bit)
            for levels, one, cell in arcs:
                before = arrival.get(one, netlist.starts.get(one))
                if before is not None and (best is None or before + levels > best):
                    best, came[bit] = before + levels, (one, cell)
            if best is not None:
                arrival[bit] = best
            else:
                arrival[bit] = 0.0  # a function of constants
    return {**netlist.starts, **arrival}, came


def _readable(netnames: Mapping[str, Any], registers: Mapping[Bit, Bit]) -> dict[Bit, str]:
    """Return the most readable name of each bit: not hidden, then without $, then short.

    A register that yosys made, as for the address of a memory, is named after its input.
    """
    best: dict[Bit, tuple[tuple[bool, bool, int], str]] = {}
    for name, net in netnames.items():
        rank = (bool(net["hide_name"]) or name.startswith("$"), "$" in name, len(name))
        bits = net["bits"]
        for at, bit in enumerate(bits):
            if bit not in best or rank < best[bit][0]:
                best[bit] = (rank, f"{name}[{at}]" if len(bits) > 1 else name)
    names = {bit: name for bit, (_, name) in best.items()}
    for output, source in registers.items():
        if names.get(output, "$").startswith("$") and not names.get(source, "$").startswith("$"):
            names[output] = f"register of {names[source]}"
    return names


def _paths(
    ends: Iterable[tuple[float, Bit, Bit | str, str]], came: Mapping[Bit, tuple[Bit, str]], names: Mapping[Bit, str]
) -> Iterator[Path]:
    """Yield the worst paths, one for each start and end, whatever bit of them."""
    seen: set[tuple[str, str]] = set()
    for levels, bit, to, pin in ends:
        cells, through = [], []
        while bit in came:
            if not (name := names.get(bit, "$")).startswith("$"):
                through.append(name)
            bit, cell = came[bit]
            cells.append(cell)
        start, end = names.get(bit, str(bit)), f"{names.get(to, to)}{f'.{pin}' if pin else ''}"
        key = (_word(start), _word(end))
        if key not in seen and cells:
            seen.add(key)
            yield Path(
                levels=round(levels, 1),
                start=start,
                end=end,
                cells=_run_lengths(reversed(cells)),
                through=tuple(reversed(through)),
            )
        if len(seen) == _SHOWN:
            return


def _word(name: str) -> str:
    return re.sub(r"\[\d+\]", "", name)


def _run_lengths(cells: Iterable[str]) -> str:
    runs: list[tuple[str, int]] = []
    for cell in cells:
        if runs and runs[-1][0] == cell:
            runs[-1] = (cell, runs[-1][1] + 1)
        else:
            runs.append((cell, 1))
    return " ".join(f"{cell}x{count}" if count > 1 else cell for cell, count in runs)


def _most(loads: Counter[Bit], names: Mapping[Bit, str], bits: Iterable[Bit]) -> tuple[Loads, ...]:
    ranked = sorted(((loads[bit], names.get(bit, str(bit))) for bit in bits), key=lambda one: (-one[0], one[1]))
    return tuple(Loads(name=name, loads=count) for count, name in ranked[:_SHOWN])
