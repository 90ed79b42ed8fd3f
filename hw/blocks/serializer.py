"""Conversion of words of several lanes to single elements."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import words
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources

__all__ = ["Serializer"]


class Serializer(CostedComponent):
    """Emit the elements of a vector one after the other.

    Parameters:
        width: bits of an element, 1 to 64.
        slots: number of slots, 1 to 8.
        lanes: elements of an input word, 2 to 64.

    Members:
        spares: In(stream of range(lanes)). Number of unused lanes in each vector's last word, which waits for it.
        input: In(words(width, slots, lanes)). Every vector begins with a new word.
        output: Out(words(width, slots, 1)). ``last`` accompanies the last element of a vector.

    Latency: 1 cycle from a word's transfer to its first element.
    Throughput: one element per cycle, across vectors too.
    Source: derived here.
    """

    def __init__(self, *, width: int, slots: int, lanes: int) -> None:
        check("width", width, 1, 64)
        check("slots", slots, 1, 8)
        check("lanes", lanes, 2, 64)
        self._width, self._slots = width, slots
        super().__init__(
            lambda: {
                "spares": In(stream.Signature(range(lanes))),
                "input": In(words(width, slots, lanes)),
                "output": Out(words(width, slots, 1)),
            }
        )
        self._lanes = lanes

    @property
    def resources(self) -> Resources:
        """Estimate of the cost: one LUT per bit that is loaded or moved."""
        width, slots, lanes = self._width, self._slots, self._lanes
        bits, left = width * slots, lanes.bit_length()
        return Resources(lut=bits * (lanes - 1) + 3 * left + 8, ff=bits * lanes + left + 1)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, sink, lanes = self.input, self.output, self._lanes
        held = Signal(source.p["values"].shape(), reset_less=True)  # the next element is lane 0
        # Elements held, and whether they are the last ones of the vector.
        left = Signal(range(lanes + 1))
        holds_last = Signal()
        free = Signal()
        known = Signal()
        do_load = Signal()
        m.d.comb += [
            free.eq((left == 0) | ((left == 1) & sink.ready)),
            known.eq(self.spares.valid | ~source.p.last),
            source.ready.eq(free & known),
            do_load.eq(source.valid & source.ready),
            self.spares.ready.eq(source.valid & source.p.last & free),
            sink.valid.eq(left != 0),
            sink.p["values"][0].eq(held[0]),
            sink.p.last.eq(holds_last & (left == 1)),
        ]
        with m.If(do_load):
            m.d.sync += [
                held.eq(source.p["values"]),
                left.eq(lanes - Mux(source.p.last, self.spares.payload, 0)),
                holds_last.eq(source.p.last),
            ]
        with m.Elif(sink.valid & sink.ready):
            # The last lane keeps its value: it never moves twice, so it needs no multiplexer.
            m.d.sync += [held[lane].eq(held[lane + 1]) for lane in range(lanes - 1)]
            m.d.sync += left.eq(left - 1)
        return m
