"""Conversion of words of few lanes to words of more lanes, and back."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import words
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources

__all__ = ["Collector"]


class Collector(CostedComponent):
    """Repack a vector into words of another number of lanes.

    Parameters:
        width: bits of an element, 1 to 64.
        slots: number of slots, 1 to 8.
        lanes: elements of an output word, 1 to 64.
        in_lanes: elements of an input word, 1 to 64.

    Members:
        input: In(words(width, slots, in_lanes)). Every lane of the last word belongs to the vector.
        output: Out(words(width, slots, lanes)). Lanes after the end of the vector are zero.

    Latency: 1 cycle from the word that completes an output word.
    Throughput: an input word takes as many cycles as there are output words that it contributes to, so with one output
        lane one element per cycle; at most one output word per cycle.
    Source: derived here; the lanes are rotated as in edgedec.hw.blocks.gearbox.
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
        """Estimate of the cost; calibrated with one input lane, derived for more."""
        width, slots, lanes, in_lanes = self._width, self._slots, self._lanes, self._in_lanes
        bits, control = width * slots, (lanes - 1).bit_length() + (in_lanes - 1).bit_length()
        rotated = bits * in_lanes * -(-(in_lanes - 1) // 3)  # a LUT chooses among four lanes
        return Resources(lut=rotated + 2 * lanes + 4 * control, ff=bits * lanes + 2 * control + 2)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        lanes, wide, source, sink = self._lanes, self._in_lanes, self.input, self.output
        fill = Signal(range(lanes))  # lanes of the output word that are filled
        used = Signal(range(wide))  # lanes of the input word that the previous output word took
        reach = Signal(range(lanes + wide))
        excess = Signal(range(wide))
        whole = Signal()
        do_move = Signal()
        m.d.comb += [
            reach.eq(fill + wide - used),
            whole.eq(reach >= lanes),
            excess.eq(Mux(whole, reach - lanes, 0)),
            do_move.eq(source.valid & (~sink.valid | sink.ready)),
            source.ready.eq((~sink.valid | sink.ready) & (excess == 0)),
        ]
        last = Signal()
        m.d.comb += last.eq(source.p.last & (excess == 0))
        with m.If(sink.ready):
            m.d.sync += sink.valid.eq(0)
        with m.If(do_move):
            m.d.sync += [
                sink.valid.eq(whole | last),
                sink.p.last.eq(last),
                fill.eq(Mux(whole | last, 0, reach)),
                used.eq(Mux(excess == 0, 0, wide - excess)),
            ]
        rotated = self._turned(m, do_move & (whole | last), excess)
        for lane in range(lanes):
            with m.If(do_move & (fill <= lane)):
                m.d.sync += sink.p["values"][lane].eq(rotated[lane % wide])
            # Zeros are assigned apart from values so that they become a reset of the register, not a gate at its input.
            with m.If(do_move & (reach <= lane)):
                m.d.sync += sink.p["values"][lane].eq(0)
        return m

    def _turned(self, m: Module, closed: Signal, excess: Signal) -> list[Any]:
        """Return the input's lanes, ordered by output lane modulo ``in_lanes``; each output word may rotate them anew."""
        wide, values = self._in_lanes, self.input.p["values"]
        offset = Signal(range(wide))
        with m.If(closed):
            m.d.sync += offset.eq(excess)
        rotated = [Signal.like(values[0].as_value(), name=f"turned_{lane}") for lane in range(wide)]
        with m.Switch(offset):
            for turn in range(wide):
                with m.Case(turn):
                    m.d.comb += [lane.eq(values[(k - turn) % wide]) for k, lane in enumerate(rotated)]
        return rotated
