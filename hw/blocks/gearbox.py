"""Conversion of words of a few lanes to blocks of many columns."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, unsigned
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import codes, words
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources

__all__ = ["Gearbox"]


class Gearbox(CostedComponent):
    """Collect the codes of a vector, ``lanes`` at a time, into blocks of ``columns``; zeros fill the last block.

    Parameters:
        slots: number of slots, 1 to 8.
        columns: columns of a block, 1 to 64.
        lanes: elements of a word, 1 to 64.

    Members:
        input: In(words(8, slots, lanes)).
        blocks: In(stream of unsigned(16)). Number of blocks of the vector, one item per vector. Lanes after the last
            block, and further words up to the end of the vector, are dropped; blocks after the vector's end are zero.
        output: Out(codes(slots, columns)).

    Latency: 1 cycle from the word that completes a block to the block; for the last block of a vector up to
        ceil(columns / lanes) more, in which zeros are filled in.
    Throughput: one block in ceil(columns / lanes) + 2 cycles: a word that belongs to two blocks takes two cycles, and
        no word is taken while a block waits.
    Source: derived here. A word is rotated so that each of its lanes always goes to the same residue of columns; the
        block register then needs no multiplexers.
    """

    def __init__(self, *, slots: int, columns: int, lanes: int = 1) -> None:
        check("slots", slots, 1, 8)
        check("columns", columns, 1, 64)
        check("lanes", lanes, 1, 64)
        super().__init__(
            lambda: {
                "input": In(words(8, slots, lanes)),
                "blocks": In(stream.Signature(unsigned(16))),
                "output": Out(codes(slots, columns)),
            }
        )
        self._slots, self._columns, self._lanes = slots, columns, lanes

    @property
    def resources(self) -> Resources:
        slots, columns, lanes = self._slots, self._columns, self._lanes
        return Resources(
            lut=(24 * lanes if lanes > 1 else 8) * slots + 19 * columns // 8 + 44,  # one lane is not turned
            ff=8 * slots * columns + 20 + columns.bit_length() + 2 * lanes.bit_length(),
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        lanes, columns, source, sink = self._lanes, self._columns, self.input, self.output
        fill = Signal(range(columns))  # columns of the block that are filled
        phase = Signal(range(lanes))  # lanes of the word that the previous block took
        # Blocks left; whether a vector is in progress; whether its last word was taken.
        left = Signal(16)
        busy = Signal()
        ended = Signal()
        reach = Signal(range(columns + lanes))
        excess = Signal(range(lanes))
        open_ = Signal()
        whole = Signal()
        do_move = Signal()
        m.d.comb += [
            reach.eq(fill + lanes - phase),
            whole.eq(reach >= columns),
            excess.eq(Mux(whole, reach - columns, 0)),
            open_.eq(busy & (left != 0) & ~sink.valid),
            do_move.eq(open_ & (source.valid | ended)),
            source.ready.eq(busy & ~ended & ((open_ & (excess == 0)) | (left == 0))),
            self.blocks.ready.eq(~busy),
        ]
        with m.If(sink.ready):
            m.d.sync += sink.valid.eq(0)
        with m.If(source.valid & source.ready & source.p.last):
            m.d.sync += ended.eq(1)
        with m.If(do_move):
            m.d.sync += [
                fill.eq(Mux(whole, 0, reach)),
                phase.eq(Mux(excess == 0, 0, lanes - excess)),
                sink.valid.eq(whole),
                sink.p.last.eq(left == 1),
            ]
            with m.If(whole):  # it comes late, so it enables the register and is no operand
                m.d.sync += left.eq(left - 1)
        with m.If(busy & ended & (left == 0)):
            m.d.sync += busy.eq(0)
        with m.If(self.blocks.valid & ~busy):
            m.d.sync += [left.eq(self.blocks.payload), busy.eq(1), ended.eq(0), fill.eq(0), phase.eq(0)]
        rotated = self._turned(m, do_move & whole, excess, ended)
        for column in range(columns):
            with m.If(do_move & (fill <= column) & (reach > column)):
                m.d.sync += sink.p.codes[column].eq(rotated[column % lanes])
        return m

    def _turned(self, m: Module, new_block: Value, excess: Signal, ended: Signal) -> list[Any]:
        """Return the lanes of the word, ordered by column modulo ``lanes``; they are zero once the vector has ended.

        Lane l of a word goes to a column c with c % lanes = (l + rotation) % lanes. The rotation is the same for all words
        of a block: the number of lanes that the block takes of its first word, or 0 if it takes all.
        """
        rotation = Signal(range(self._lanes))
        with m.If(new_block):
            m.d.sync += rotation.eq(excess)
        with m.If(self.blocks.valid & self.blocks.ready):
            m.d.sync += rotation.eq(0)
        lanes = self.input.p["values"]
        rotated = [Signal.like(Value.cast(lanes[0]), name=f"turned_{i}") for i in range(self._lanes)]
        with m.If(~ended), m.Switch(rotation):
            for r in range(self._lanes):
                with m.Case(r):
                    m.d.comb += [x.eq(lanes[(k - r) % self._lanes]) for k, x in enumerate(rotated)]
        return rotated
