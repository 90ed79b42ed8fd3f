"""Conversion of words of one lane to words of more lanes."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import words
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources

__all__ = ["Collector"]


class Collector(CostedComponent):
    """Repack a vector into words of several lanes.

    Parameters:
        width: bits of an element, 1 to 64.
        slots: number of slots, 1 to 8.
        lanes: elements of an output word, 1 to 64.

    Members:
        input: In(words(width, slots)).
        output: Out(words(width, slots, lanes)). Lanes after the end of the vector are zero.

    Latency: 1 cycle from the word that completes an output word.
    Throughput: one element per cycle.
    Source: derived here.
    """

    def __init__(self, *, width: int, slots: int, lanes: int = 1) -> None:
        check("width", width, 1, 64)
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 64)
        super().__init__(lambda: {"input": In(words(width, slots)), "output": Out(words(width, slots, lanes))})
        self._width, self._slots, self._lanes = width, slots, lanes

    @property
    def resources(self) -> Resources:
        lanes, index = self._lanes, (self._lanes - 1).bit_length()
        return Resources(lut=2 * lanes + 3 * index, ff=self._width * self._slots * lanes + index + 2)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        lanes, source, sink = self._lanes, self.input, self.output
        fill = Signal(range(lanes))  # lanes of the output word that are filled
        ends = Signal()
        do_move = Signal()
        m.d.comb += [
            source.ready.eq(~sink.valid | sink.ready),
            do_move.eq(source.valid & source.ready),
            ends.eq(source.p.last | (fill == lanes - 1)),
        ]
        with m.If(sink.ready):
            m.d.sync += sink.valid.eq(0)
        with m.If(do_move):
            m.d.sync += [sink.valid.eq(ends), sink.p.last.eq(source.p.last), fill.eq(Mux(ends, 0, fill + 1))]
        for lane in range(lanes):
            with m.If(do_move & (fill <= lane)):
                m.d.sync += sink.p["values"][lane].eq(source.p["values"][0])
            # Zeros are assigned apart from values so that they become a reset of the register, not a gate at its input.
            with m.If(do_move & (fill < lane)):
                m.d.sync += sink.p["values"][lane].eq(0)
        return m
