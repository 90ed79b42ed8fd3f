"""Words of few lanes to words of more, or of more to words of few."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from edgedec.hw.component import CostedComponent
from edgedec.hw.pipeline import check
from edgedec.hw.resources import Resources
from edgedec.hw.shapes import words

__all__ = ["Collector"]


class Collector(CostedComponent):
    """The same vector in words of another number of lanes.

    Parameters:
        width: of an element, 1 to 64.
        slots: 1 to 8.
        lanes: elements of an output word, 1 to 64.
        in_lanes: elements of an input word, 1 to 64.

    Members:
        input: In(words(width, slots, in_lanes)). Every lane of the last word belongs to the vector too.
        output: Out(words(width, slots, lanes)). Lanes behind the vector's end are zero.

    Latency: 1 cycle from the word that completes an output word.
    Throughput: a word is taken in as many cycles as there are output words that it belongs to: with one lane an element in
        every cycle. As for the output, a word per cycle at most.
    Source: derived here; the lanes are turned as in edgedec.hw.gearbox.
    """

    def __init__(self, *, width: int, slots: int, lanes: int = 1, in_lanes: int = 1) -> None:
        check("width", width, 1, 64)
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 64)
        check("in_lanes", in_lanes, 1, 64)
        self._width, self._slots = width, slots
        super().__init__(
            lambda: {"input": In(words(width, slots, in_lanes)), "output": Out(words(width, slots, lanes))}
        )
        self._lanes, self._in_lanes = lanes, in_lanes

    @property
    def resources(self) -> Resources:
        """Of a Collector with these parameters; calibrated with one lane in, derived with more."""
        width, slots, lanes, in_lanes = self._width, self._slots, self._lanes, self._in_lanes
        bits, control = width * slots, (lanes - 1).bit_length() + (in_lanes - 1).bit_length()
        turned = bits * in_lanes * -(-(in_lanes - 1) // 3)  # of four lanes in a LUT
        return Resources(lut=turned + 2 * lanes + 4 * control, ff=bits * lanes + 2 * control + 2)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        lanes, wide, source, sink = self._lanes, self._in_lanes, self.input, self.output
        fill = Signal(range(lanes))  # lanes of the output word that are there
        used = Signal(range(wide))  # lanes of the input word that the output word before took
        reach, excess = Signal(range(lanes + wide)), Signal(range(wide))
        whole, moving = Signal(), Signal()
        m.d.comb += [
            reach.eq(fill + wide - used),
            whole.eq(reach >= lanes),
            excess.eq(Mux(whole, reach - lanes, 0)),
            moving.eq(source.valid & (~sink.valid | sink.ready)),
            source.ready.eq((~sink.valid | sink.ready) & (excess == 0)),
        ]
        ends = Signal()
        m.d.comb += ends.eq(source.p.last & (excess == 0))
        with m.If(sink.ready):
            m.d.sync += sink.valid.eq(0)
        with m.If(moving):
            m.d.sync += [
                sink.valid.eq(whole | ends),
                sink.p.last.eq(ends),
                fill.eq(Mux(whole | ends, 0, reach)),
                used.eq(Mux(excess == 0, 0, wide - excess)),
            ]
        turned = self._turned(m, moving & (whole | ends), excess)
        for lane in range(lanes):
            with m.If(moving & (fill <= lane)):
                m.d.sync += sink.p["values"][lane].eq(turned[lane % wide])
            with m.If(moving & (reach <= lane)):  # a reset of the register, not of its input
                m.d.sync += sink.p["values"][lane].eq(0)
        return m

    def _turned(self, m: Module, closed: Signal, excess: Signal) -> list[Any]:
        """The input's lanes by the residue of the output lane that they go to; its offset changes with the output word."""
        wide, given = self._in_lanes, self.input.p["values"]
        offset = Signal(range(wide))
        with m.If(closed):
            m.d.sync += offset.eq(excess)
        found = [Signal.like(given[0].as_value(), name=f"turned_{lane}") for lane in range(wide)]
        with m.Switch(offset):
            for turn in range(wide):
                with m.Case(turn):
                    m.d.comb += [lane.eq(given[(k - turn) % wide]) for k, lane in enumerate(found)]
        return found
