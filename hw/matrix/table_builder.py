"""Construction of the entries of all lookup tables of a block of columns."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import codes
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import GROUP_COLUMNS
from edgedec.hw.matrix._table_walk import ENTRY_BITS, STEPS, WALK, columns_of, sum_bits
from edgedec.hw.matrix.lookup_index import check_beat

__all__ = ["TableBuilder"]


class TableBuilder(CostedComponent):
    """Walk through the 14 stored sums of three codes, in every group and slot at once, with one adder each.

    The block is not copied: it is taken when the walk ends, so its source holds it until then.

    Parameters:
        beat_bytes: columns of a block, 4 to 64, not a multiple of 3.
        slots: number of slots, 1 to 8.

    Members:
        codes: In(codes(slots, beat_bytes)). Values from -127 to 127; ``last`` is ignored.
        free: In(1). A walk may begin, because the bank that it writes is not in use. Sampled before a walk only.
        write: Out(1). ``entries`` are to be written to ``address`` of every table.
        address: Out(4). Address of the entries.
        entries: Out(signed(10) [groups, slots]). One entry of each table.
        filled: Out(1). High for one cycle. The bank can be read from the third cycle after it on. The block is taken
            in the second one.

    Latency: the first entry is written in the cycle after the block and ``free`` are valid; the block is taken 14
        cycles after they are.
    Throughput: one block in 15 cycles.
    Source: derived here.
    """

    def __init__(self, *, beat_bytes: int, slots: int) -> None:
        check_beat(beat_bytes)
        check("slots", slots, 1, 8)
        self._columns, self._slots = columns_of(beat_bytes), slots
        entries = data.ArrayLayout(data.ArrayLayout(signed(ENTRY_BITS), slots), len(self._columns))
        self._beat_bytes = beat_bytes
        super().__init__(
            lambda: {
                "codes": In(codes(slots, beat_bytes)),
                "free": In(1),
                "write": Out(1),
                "address": Out(range(len(WALK))),
                "entries": Out(entries),
                "filled": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost: an adder per entry, and eight LUTs that choose its operand."""
        beat_bytes, slots = self._beat_bytes, self._slots
        entries = [sum_bits(columns) for columns in columns_of(beat_bytes)]
        chosen = sum(8 if columns > 1 else 1 for columns in columns_of(beat_bytes))
        return Resources(lut=15, ff=8) + Resources(lut=sum(entries) + chosen, ff=sum(entries)) * slots

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        walking = Signal(
            attrs={"keep": "true"}
        )  # ``write`` once more: each has some 1,700 loads at 64 bytes and 8 slots
        column, subtract = self._walk(m, walking)
        for group, columns in enumerate(self._columns):
            for slot in range(self._slots):
                offered = [self.codes.p.codes[group * GROUP_COLUMNS + j][slot] for j in range(columns)]
                entry = Signal(signed(sum_bits(columns)), name=f"entry_{group}_{slot}", reset_less=True)
                m.d.comb += self.entries[group][slot].eq(entry)
                with m.If(walking):
                    m.d.sync += entry.eq(_added(entry, _selected(offered, column), subtract))
                with m.Else():
                    m.d.sync += entry.eq(0)
        return m

    def _walk(self, m: Module, walking: Signal) -> tuple[Signal, Signal]:
        """Count the entries. Return the registered column and sign of the step from the present entry to the next."""
        final = len(WALK) - 1
        column = Signal(range(GROUP_COLUMNS), init=STEPS[0][0])
        subtract = Signal(init=STEPS[0][1])
        m.d.comb += [
            self.filled.eq(self.write & (self.address == final - 2)),
            self.codes.ready.eq(self.write & (self.address == final)),
        ]
        with m.If(~self.write):
            starts = self.codes.valid & self.free
            m.d.sync += [self.write.eq(starts), walking.eq(starts)]
        with m.Elif(self.address == final):
            m.d.sync += [self.write.eq(0), walking.eq(0)]
            m.d.sync += [self.address.eq(0), column.eq(STEPS[0][0]), subtract.eq(STEPS[0][1])]
        with m.Else():
            m.d.sync += self.address.eq(self.address + 1)
            with m.Switch(self.address):
                for entry, (its_column, its_sign) in enumerate(STEPS[1:]):
                    with m.Case(entry):
                        m.d.sync += [column.eq(its_column), subtract.eq(its_sign)]
        return column, subtract


def _selected(offered: list[Any], column: Signal) -> Value:
    """Return one of up to three codes, or zero for a missing column."""
    first, second, third = offered + [0] * (GROUP_COLUMNS - len(offered))
    selected: Value = Mux(column[1], third, Mux(column[0], second, first))
    return selected


def _added(entry: Signal, code: Value, subtract: Signal) -> Value:
    """Return ``entry - code`` or ``entry + code``, computed with one adder."""
    operand = (code ^ subtract.replicate(len(code)))[: len(code)].as_signed()
    return entry + operand + subtract
