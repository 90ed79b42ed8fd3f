"""Words of some lanes to single elements."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out

from edgedec.hw.pipeline import check
from edgedec.hw.resources import Resources
from edgedec.hw.shapes import words

__all__ = ["Serializer", "estimate"]

_COUNT_BITS = 20


class Serializer(Component):
    """A vector's elements one after the other, as many as are asked for.

    Parameters:
        width: of an element, 1 to 64.
        slots: 1 to 8.
        lanes: elements of an input word, 1 to 64.

    Members:
        counts: In(stream of unsigned(20)). Elements of each vector, at least 1.
        input: In(words(width, slots, lanes)). Every vector begins with a new word and has ceil(count / lanes) of them; lanes
            behind the count are dropped. ``last`` is not looked at.
        output: Out(words(width, slots, 1)). ``last`` with the last of the count.

    Latency: 1 cycle from a word's transfer to its first element; a word may come the cycle after its count.
    Throughput: an element per cycle; one cycle is lost between two vectors if the first one's last word has one element.
    Source: derived here.
    """

    def __init__(self, *, width: int, slots: int, lanes: int = 5) -> None:
        check("width", width, 1, 64)
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 64)
        super().__init__(
            {
                "counts": In(stream.Signature(unsigned(_COUNT_BITS))),
                "input": In(words(width, slots, lanes)),
                "output": Out(words(width, slots, 1)),
            }
        )
        self._lanes = lanes

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, sink, lanes = self.input, self.output, self._lanes
        missing = Signal(_COUNT_BITS)  # elements of the vector that no taken word holds
        held = Signal(source.p["values"].shape())  # the next element is lane 0
        rest, ends = Signal(range(lanes + 1)), Signal()  # elements that are held; they are the vector's last
        loading, final = Signal(), Signal()
        m.d.comb += [
            self.counts.ready.eq(missing == 0),
            source.ready.eq((missing != 0) & ((rest == 0) | ((rest == 1) & sink.ready))),
            loading.eq(source.valid & source.ready),
            final.eq(missing <= lanes),
            sink.valid.eq(rest != 0),
            sink.p["values"][0].eq(held[0]),
            sink.p.last.eq(ends & (rest == 1)),
        ]
        with m.If(self.counts.valid & self.counts.ready):
            m.d.sync += missing.eq(self.counts.payload)
        with m.If(loading):
            m.d.sync += [
                held.eq(source.p["values"]),
                rest.eq(Mux(final, missing[: len(rest)], lanes)),
                ends.eq(final),
                missing.eq(Mux(final, 0, missing - lanes)),
            ]
        with m.Elif(sink.valid & sink.ready):
            m.d.sync += [held.eq(held.as_value() >> len(held[0].as_value())), rest.eq(rest - 1)]
        return m


def estimate(*, width: int, slots: int, lanes: int = 5) -> Resources:
    """Of a Serializer with these parameters; derived, not calibrated: a LUT per bit that is loaded or moved on."""
    bits, rest = width * slots, lanes.bit_length()
    return Resources(lut=bits * (lanes - 1) + 36 + 2 * rest, ff=bits * lanes + _COUNT_BITS + rest + 1)
