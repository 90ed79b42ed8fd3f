"""Translate the cells of yosys' synth_ecp5 to rows for gates.hpp. Cells and modes without a model are refused.

yosys' share/lattice has models of TRELLIS_FF, CCU2C and similar cells, but DP16KD and MULT18X18D are black boxes there. Of
these two, the modes are modelled that yosys uses for memories and multipliers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgedec.errors import UnsupportedError

__all__ = ["KINDS", "NO_NET", "ONE", "ZERO", "Cell", "GateRow", "MemoryContents", "parts_of"]

# Nets of the two constants, and of an output that nothing reads.
ZERO, ONE, NO_NET = 0, 1, -1
# Values of enum Kind in gates.hpp.
LUT, CARRY, READ, MULTIPLIER, RESET, FLIP_FLOP, WRITE, PORT = range(8)

_MULTIPLEXER = 0xCACA  # LUT table that selects A or B by C
_WRITE_MODES = {"NORMAL": 0, "WRITETHROUGH": 1, "READBEFOREWRITE": 2}
_WIDTHS = (1, 2, 4, 9, 18, 36)
_ROWS, _PADDED_BITS = 512, 40  # rows of a DP16KD, and bits of a row in its parameters, of which 36 exist
_SLICES = 64


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a netlist.

    Members:
        kind: name of the cell's type, such as LUT4.
        parameters: values by name; a value is text or the bits of a number.
        pins: nets by the name of a pin.
    """

    name: str
    kind: str
    parameters: Mapping[str, str]
    pins: Mapping[str, int]

    def pin(self, name: str) -> int:
        """Return the net of an input; the constant 0 if nothing is connected, as in nextpnr."""
        return self.pins.get(name, ZERO)

    def out(self, name: str) -> int:
        return self.pins.get(name, NO_NET)

    def bus(self, name: str, count: int) -> list[int]:
        return [self.pin(f"{name}{bit}") for bit in range(count)]

    def outs(self, name: str, count: int) -> list[int]:
        return [self.out(f"{name}{bit}") for bit in range(count)]

    def text(self, name: str, default: str) -> str:
        # yosys adds a blank to a text of zeros and ones, such as CEMUX = "1".
        return self.parameters.get(name, default).strip()

    def bits(self, name: str) -> int:
        """Return the number that a parameter holds; unknown bits are zero."""
        return int(self.parameters.get(name, "0").replace("x", "0").replace("z", "0"), 2)

    def one_of(self, name: str, known: Sequence[str]) -> str:
        """Return a text parameter that must be one of ``known``; it is the first one if the cell does not have it."""
        value = self.text(name, known[0])
        if value not in known:
            raise self.refused(f"{name} must be {' or '.join(known)}, which are modelled, not {value}")
        return value

    def refused(self, why: str) -> UnsupportedError:
        return UnsupportedError(
            f"the netlist's {self.kind} {self.name}: {why}; synthesize with edgedec build-bitstream"
        )


@dataclass(frozen=True, kw_only=True)
class GateRow:
    """A row for gates.hpp.

    Members:
        clock: (net, inverted) of a clocked row; None for a combinational one.
    """

    kind: int
    inputs: Sequence[int]
    outputs: Sequence[int]
    constants: Sequence[int] = ()
    clock: tuple[int, bool] | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryContents:
    """The contents of a memory at the start.

    Members:
        words: 512 rows of 36 bits, or 16 rows of 4 bits.
    """

    words: tuple[int, ...]


def parts_of(cell: Cell, number: int) -> Iterator[GateRow | MemoryContents]:
    """Yield the rows, and the memory if it has one, that a cell becomes in gates.hpp.

    Args:
        number: number of the cell's memory, which is the count of such cells before it; for a CCU2C, the net between its
            halves.

    Raises:
        UnsupportedError: the cell's kind or its parameters are not modelled.
    """
    if cell.kind not in _READERS:
        raise cell.refused(f"such a cell is not modelled; modelled are {', '.join(KINDS)}")
    yield from _READERS[cell.kind](cell, number)


def _lut(cell: Cell, _: int) -> Iterator[GateRow]:
    yield GateRow(
        kind=LUT, inputs=[cell.pin(name) for name in "ABCD"], outputs=[cell.out("Z")], constants=[cell.bits("INIT")]
    )


def _multiplexer(zero: str, one: str, select: str) -> Callable[[Cell, int], Iterator[GateRow]]:
    def read(cell: Cell, _: int) -> Iterator[GateRow]:
        inputs = [cell.pin(zero), cell.pin(one), cell.pin(select), ZERO]
        yield GateRow(kind=LUT, inputs=inputs, outputs=[cell.out("Z")], constants=[_MULTIPLEXER])

    return read


def _carry(cell: Cell, between: int) -> Iterator[GateRow]:
    """Yield two halves; ``between`` is the net of the carry from the first to the second."""
    for half, (carry_in, carry_out) in enumerate(((cell.pin("CIN"), between), (between, cell.out("COUT")))):
        injected = cell.one_of(f"INJECT1_{half}", ("YES", "NO")) == "YES"
        yield GateRow(
            kind=CARRY,
            inputs=[*(cell.pin(f"{name}{half}") for name in "ABCD"), carry_in],
            outputs=[cell.out(f"S{half}"), carry_out],
            constants=[cell.bits(f"INIT{half}") | injected << 16],
        )


def _flip_flop(cell: Cell, _: int) -> Iterator[GateRow]:
    cell.one_of("LSRMODE", ("LSR",))
    enable = cell.one_of("CEMUX", ("1", "0", "INV", "CE"))
    reset_inverted = cell.one_of("LSRMUX", ("LSR", "INV")) == "INV"
    value = cell.one_of("REGSET", ("RESET", "SET")) == "SET"
    asynchronous = cell.one_of("SRMODE", ("LSR_OVER_CE", "ASYNC")) == "ASYNC"
    enable_net = {"1": ONE, "0": ZERO}.get(enable, cell.pin("CE"))
    reset, out = cell.pin("LSR"), cell.out("Q")
    yield GateRow(
        kind=FLIP_FLOP,
        inputs=[cell.pin("DI"), enable_net, reset],
        outputs=[out],
        constants=[(enable == "INV") | reset_inverted << 1 | value << 2],
        clock=_clock(cell, "CLK", "CLKMUX"),
    )
    if asynchronous and reset != (ONE if reset_inverted else ZERO):
        yield GateRow(kind=RESET, inputs=[reset], outputs=[out], constants=[reset_inverted | value << 1])


def _small_memory(cell: Cell, number: int) -> Iterator[GateRow | MemoryContents]:
    enable = cell.one_of("WREMUX", ("WRE", "INV", "1", "0"))
    enable_net = {"1": ONE, "0": ZERO}.get(enable, cell.pin("WRE"))
    contents = cell.bits("INITVAL")
    yield MemoryContents(words=tuple(contents >> 4 * word & 15 for word in range(16)))
    yield GateRow(kind=READ, inputs=cell.bus("RAD", 4), outputs=cell.outs("DO", 4), constants=[number])
    yield GateRow(
        kind=WRITE,
        inputs=[*cell.bus("DI", 4), *cell.bus("WAD", 4), enable_net],
        outputs=[],
        constants=[number, enable == "INV"],
        clock=_clock(cell, "WCK", "WCKMUX"),
    )


def _multiplier(cell: Cell, _: int) -> Iterator[GateRow]:
    """Yield a multiplier without registers, because yosys places registers in the fabric."""
    for stage in ("INPUTA", "INPUTB", "INPUTC", "PIPELINE", "OUTPUT"):
        cell.one_of(f"REG_{stage}_CLK", ("NONE",))
    cell.one_of("MULT_BYPASS", ("DISABLED",))
    for source in ("SOURCEA", "SOURCEB"):
        if cell.pin(source) != ZERO:
            raise cell.refused(f"{source} must be 0, the only value that is modelled")
    for name in cell.pins:
        if name.startswith(("SRO", "RO", "SIGNEDP")):
            raise cell.refused(f"its output {name} is not modelled")
    inputs = [*cell.bus("A", 18), *cell.bus("B", 18), cell.pin("SIGNEDA"), cell.pin("SIGNEDB")]
    yield GateRow(kind=MULTIPLIER, inputs=inputs, outputs=cell.outs("P", 36))


def _block_memory(cell: Cell, number: int) -> Iterator[GateRow | MemoryContents]:
    reset_mode = cell.one_of("RESETMODE", ("SYNC", "ASYNC"))
    widths = [cell.bits(f"DATA_WIDTH_{port}") for port in "AB"]
    if any(width not in _WIDTHS for width in widths):
        raise cell.refused(f"DATA_WIDTH_A and DATA_WIDTH_B must be one of {_WIDTHS}, not {widths}")
    yield MemoryContents(words=_contents(cell))
    data = {port: cell.bus(f"DI{port}", 18) for port in "AB"}
    outputs = {port: cell.outs(f"DO{port}", 18) for port in "AB"}
    for which, (port, width) in enumerate(zip("AB", widths, strict=True)):
        cell.one_of(f"REGMODE_{port}", ("NOREG",))
        cell.one_of(f"CSDECODE_{port}", ("0b000",))
        mode = cell.one_of(f"WRITEMODE_{port}", tuple(_WRITE_MODES))
        reset = cell.pin(f"RST{port}")
        if reset_mode == "ASYNC" and reset != ZERO:
            raise cell.refused(f"RESETMODE must be SYNC, not ASYNC, if RST{port} is connected; only this is modelled")
        # With 36 bits, port A only writes and port B only reads, and each uses the pins of both.
        shown = [NO_NET] * 36
        if port == "B" and width == 36:
            shown = outputs["A"] + outputs["B"]
        elif width != 36 and not (port == "A" and widths[1] == 36):
            shown[:18] = outputs[port]
        inputs = [
            *cell.bus(f"AD{port}", 14),
            *(cell.pin(f"{name}{port}") for name in ("CE", "WE", "RST")),
            *cell.bus(f"CS{port}", 3),
            *(data["A"] + data["B"] if width == 36 else data[port] + [ZERO] * 18),
        ]
        yield GateRow(
            kind=PORT,
            inputs=inputs,
            outputs=shown,
            constants=[number, which, width, _WRITE_MODES[mode]],
            clock=_clock(cell, f"CLK{port}", f"CLK{port}MUX"),
        )


def _contents(cell: Cell) -> tuple[int, ...]:
    """Return the rows that 64 parameters hold, each with 16 times 20 bits whose upper two do not exist."""
    whole = 0
    for number in range(_SLICES):
        whole |= cell.bits(f"INITVAL_{number:02X}") << number * 320
    if not whole:
        return (0,) * _ROWS
    rows = (whole >> _PADDED_BITS * row & (1 << _PADDED_BITS) - 1 for row in range(_ROWS))
    return tuple(row & 0x3FFFF | (row >> 20 & 0x3FFFF) << 18 for row in rows)


def _clock(cell: Cell, pin: str, multiplexer: str) -> tuple[int, bool]:
    return cell.pin(pin), cell.one_of(multiplexer, (pin, "INV")) == "INV"


_READERS: dict[str, Callable[[Cell, int], Iterator[GateRow | MemoryContents]]] = {
    "LUT4": _lut,
    "PFUMX": _multiplexer("BLUT", "ALUT", "C0"),
    "L6MUX21": _multiplexer("D0", "D1", "SD"),
    "CCU2C": _carry,
    "TRELLIS_FF": _flip_flop,
    "TRELLIS_DPR16X4": _small_memory,
    "DP16KD": _block_memory,
    "MULT18X18D": _multiplier,
}
KINDS = tuple(_READERS)
