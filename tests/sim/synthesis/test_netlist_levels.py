"""Test the levels and loads of netlists that are written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.sim.synthesis.netlist_levels import LEVEL_PS, MOST_LEVELS, measure_netlist

CLK = 2

Cell = dict[str, Any]


def cell(kind: str, outputs: dict[str, list[int]], inputs: dict[str, list[int | str]], **parameters: str) -> Cell:
    return {
        "type": kind,
        "connections": {**outputs, **inputs},
        "port_directions": {**dict.fromkeys(outputs, "output"), **dict.fromkeys(inputs, "input")},
        "parameters": parameters,
    }


def register(q: int, d: int, ce: int | str = "1", r: int | str = "0") -> Cell:
    return cell("FDRE", {"Q": [q]}, {"C": [CLK], "CE": [ce], "D": [d], "R": [r]})


def lut(o: int, *inputs: int) -> Cell:
    return cell(f"LUT{len(inputs)}", {"O": [o]}, {f"I{at}": [bit] for at, bit in enumerate(inputs)})


def carry(o: list[int], co: list[int], ci: int | str, s: list[int]) -> Cell:
    return cell("CARRY4", {"O": o, "CO": co}, {"CI": [ci], "CYINIT": ["0"], "S": [*s], "DI": ["0"] * 4})


def module(*cells: Cell, names: dict[str, list[int]] | None = None, outputs: dict[str, list[int]] | None = None) -> Any:
    ports = {"clk": {"direction": "input", "bits": [CLK]}, "x": {"direction": "input", "bits": [3]}}
    ports |= {name: {"direction": "output", "bits": bits} for name, bits in (outputs or {}).items()}
    nets = {"clk": [CLK], "x": [3], **(names or {})}
    return {
        "ports": ports,
        "cells": {f"cell{at}": one for at, one in enumerate(cells)},
        "netnames": {name: {"bits": bits, "hide_name": 0} for name, bits in nets.items()},
    }


def test_a_chain_of_luts_counts_one_level_each() -> None:
    chain = [lut(11 + at, 10 + at) for at in range(6)]
    levels = measure_netlist(module(register(10, 3), *chain, register(30, 16), names={"start": [10], "end": [30]}))
    assert levels.worst == 6.0
    assert (levels.excess, levels.endpoints) == (1, 2)  # the other one is the first register, which a port drives
    path = levels.paths[0]
    assert (path.start, path.end, path.cells) == ("start", "end", "LUTx6")


def test_exactly_the_limit_is_no_excess() -> None:
    chain = [lut(11 + at, 10 + at) for at in range(int(MOST_LEVELS))]
    levels = measure_netlist(module(register(10, 3), *chain, register(30, 15)))
    assert (levels.worst, levels.excess) == (MOST_LEVELS, 0)


def test_a_carry_chain_counts_by_its_delay() -> None:
    cells = [register(10, 3), lut(11, 10)]
    cells += [carry([40, 41, 42, 43], [50, 51, 52, 53], "0", [11, 11, 11, 11])]
    cells += [carry([60, 61, 62, 63], [70, 71, 72, 73], 53, [11, 11, 11, 11]), register(80, 63)]
    levels = measure_netlist(module(*cells))
    assert levels.worst == pytest.approx(1 + (528 + 313) / LEVEL_PS, abs=0.05)  # S[1] to CO[3], CI to O[3]
    assert levels.paths[0].cells == "LUT CARRY4x2"


def test_the_select_of_a_wide_multiplexer_has_a_wire() -> None:
    mux = cell("MUXF7", {"O": [12]}, {"I0": ["0"], "I1": ["0"], "S": [10]})
    levels = measure_netlist(module(register(10, 3), mux, register(13, 12)))
    assert levels.worst == pytest.approx((296 + 300) / LEVEL_PS, abs=0.05)


def test_controls_of_a_flip_flop_are_endpoints() -> None:
    levels = measure_netlist(module(register(10, 3), lut(11, 10), register(12, 10, ce=11), names={"held": [12]}))
    assert (levels.worst, levels.paths[0].end) == (1.0, "held.CE")


@pytest.mark.parametrize(
    ("registered", "expected"), [("0", 1 + (2454 - 303) / LEVEL_PS), ("1", 1 + (882 - 303) / LEVEL_PS)]
)
def test_a_block_ram_starts_late(registered: str, expected: float) -> None:
    inputs: dict[str, list[int | str]] = {"ADDRARDADDR": [3], "CLKARDCLK": [CLK]}
    memory = cell("RAMB18E1", {"DOADO": [10]}, inputs, DOA_REG=registered)
    levels = measure_netlist(module(memory, lut(11, 10), register(12, 11)))
    assert levels.worst == pytest.approx(expected, abs=0.05)


def test_a_memory_in_luts_is_read_through_a_lut() -> None:
    inputs: dict[str, list[int | str]] = {"A0": [3], "DPRA0": [10], "D": [3], "WE": [3], "WCLK": [CLK]}
    memory = cell("RAM32X1D", {"DPO": [11], "SPO": [20]}, inputs)
    chain = [lut(12, 11), lut(13, 12)]
    levels = measure_netlist(module(register(9, 3), lut(10, 9), memory, *chain, register(14, 13)))
    assert levels.worst == 4.0
    assert levels.paths[0].cells == "LUT LUTRAM LUTx2"


@pytest.mark.parametrize(
    ("registers", "expected"),
    [
        ({"AREG": "1", "BREG": "1", "MREG": "1", "PREG": "1"}, 1 + (329 - 303) / LEVEL_PS),
        ({"PREG": "1"}, 2739 / LEVEL_PS),  # the factor passes the multiplier before it reaches a register
        ({"AREG": "1", "BREG": "1"}, 1 + (2952 - 303) / LEVEL_PS),
        ({}, 1 + 2823 / LEVEL_PS),
    ],
)
def test_a_multiplier_counts_with_the_registers_inside(registers: dict[str, str], expected: float) -> None:
    multiplier = cell("DSP48E1", {"P": [12]}, {"A": [10], "B": [10], "CLK": [CLK]}, **registers)
    levels = measure_netlist(module(register(10, 3), multiplier, lut(13, 12), register(14, 13)))
    assert levels.worst == pytest.approx(expected, abs=0.05)


def test_loads_count_every_pin_but_the_clock() -> None:
    many = [register(100 + at, 3, ce=10, r=11) for at in range(7)]
    levels = measure_netlist(
        module(register(10, 3), *many, lut(11, 10), outputs={"y": [100]}, names={"enable": [10], "clear": [11]})
    )
    assert (levels.register_loads[0].name, levels.register_loads[0].loads) == ("enable", 8)
    assert {one.name: one.loads for one in levels.net_loads} == {"x": 8, "clear": 7}


def test_ports_and_black_boxes_are_ends() -> None:
    box = cell("part_engine", {"busy": [10]}, {"enable": [12]})
    levels = measure_netlist(module(box, lut(11, 10), lut(12, 11), outputs={"y": [11]}))
    assert levels.worst == 2.0
    assert levels.paths[0].end == "engine.enable"


def test_a_loop_is_refused() -> None:
    with pytest.raises(ValueError, match="combinational loop"):
        measure_netlist(module(lut(11, 10), lut(10, 11), register(12, 10)))


def test_a_register_without_a_name_is_named_after_its_input() -> None:
    names = {"$techmap7.A": [10], "end": [12]}
    levels = measure_netlist(module(register(10, 3), lut(11, 10), register(12, 11), names=names))
    assert levels.paths[0].start == "register of x"


def test_a_shift_register_starts_as_a_flip_flop() -> None:
    shift = cell("SRL16E", {"Q": [10]}, {"D": [3], "CE": ["1"], "CLK": [CLK], "A0": ["1"]})
    levels = measure_netlist(module(shift, lut(11, 10), register(12, 11), names={"late": [10]}))
    assert (levels.worst, levels.paths[0].start) == (1.0, "late")
