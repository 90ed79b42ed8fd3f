"""Conversion of a beat of ternary weights to addresses of lookup tables."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value, unsigned
from amaranth.lib import data
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.config import GROUP_COLUMNS, ROWS
from edgedec.hw.matrix._table_walk import columns_of, digit_index
from edgedec.hw.matrix.trit_decoder import TritDecoder

__all__ = ["LookupIndex", "index_layout"]

_ENTRY = data.StructLayout({"address": 4, "negate": 1})  # address in a table; whether its negative is stored there


def index_layout(beat_bytes: int) -> data.ArrayLayout:
    """Return the layout {address, negate} [5, groups]: the table entry of each group's sum in each row, and its sign."""
    return data.ArrayLayout(data.ArrayLayout(_ENTRY, len(columns_of(beat_bytes))), ROWS)


class LookupIndex(CostedComponent):
    """Decode each byte once, then map three digits of a row to an address and a sign by a 64-entry table of five LUT6.
    A register between the two steps keeps each of them short.

    Parameters:
        beat_bytes: columns of a beat, 4 to 64, not a multiple of 3.

    Members:
        beat: In(unsigned(8) [beat_bytes]). Byte c holds the five rows of column c.
        indexes: Out(index_layout(beat_bytes)). ``negate`` of the last group is never set.
        error: Out(1). A byte is 243 or more; its trits count as zero.

    Latency: 1 cycle. Throughput: one beat per cycle.
    Source: derived here.
    """

    def __init__(self, *, beat_bytes: int) -> None:
        check_beat(beat_bytes)
        self._beat_bytes = beat_bytes
        self._decoders = [TritDecoder() for _ in range(beat_bytes)]
        super().__init__(
            lambda: {
                "beat": In(data.ArrayLayout(unsigned(8), beat_bytes)),
                "indexes": Out(index_layout(beat_bytes)),
                "error": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        lookups = Resources(lut=5 * len(columns_of(self._beat_bytes)) * ROWS)  # the functions of three digits
        registers = Resources(ff=(2 * ROWS + 1) * self._beat_bytes)
        return total(decoder.resources for decoder in self._decoders) + registers + lookups

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        decoders = self._decoders
        for column, decoder in enumerate(decoders):
            m.submodules[f"decoder_{column}"] = decoder
            m.d.comb += decoder.byte.eq(self.beat[column])
        held = [
            Signal.like(Value.cast(decoder.digits), name=f"digits_{column}", reset_less=True)
            for column, decoder in enumerate(decoders)
        ]
        errors = Signal(self._beat_bytes, reset_less=True)
        m.d.sync += [register.eq(decoder.digits) for register, decoder in zip(held, decoders, strict=True)]
        m.d.sync += errors.eq(Cat(decoder.error for decoder in decoders))
        m.d.comb += self.error.eq(errors.any())
        init = [dict(zip(("address", "negate"), _index(key), strict=True)) for key in range(4**GROUP_COLUMNS)]
        for row in range(ROWS):
            digits = [register.word_select(row, 2) for register in held]
            digits += [Const(2, 2)] * (-self._beat_bytes % GROUP_COLUMNS)  # the code of a missing column is zero
            for group in range(len(self.indexes[row])):
                rom = Memory(shape=_ENTRY, depth=4**GROUP_COLUMNS, init=init)
                m.submodules[f"rom_{row}_{group}"] = rom
                read = rom.read_port(domain="comb")
                m.d.comb += [
                    read.addr.eq(Cat(digits[group * GROUP_COLUMNS : (group + 1) * GROUP_COLUMNS])),
                    self.indexes[row][group].eq(read.data),
                ]
        return m


def check_beat(beat_bytes: int) -> None:
    """Check the columns of a beat, as every component of the lookup engine requires them.

    Raises:
        ValueError: out of range, or a multiple of three: the last group, which has no sign, must be narrower than the
            others.
    """
    check("beat_bytes", beat_bytes, 4, 64)
    if beat_bytes % GROUP_COLUMNS == 0:
        raise ValueError(f"beat_bytes must not be a multiple of {GROUP_COLUMNS}, not {beat_bytes!r}")


def _index(key: int) -> tuple[int, bool]:
    return digit_index(tuple(key >> 2 * column & 3 for column in range(GROUP_COLUMNS)))
