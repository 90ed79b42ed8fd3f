"""The largest absolute value of a vector, determined as its words pass."""

from typing import Any

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.payloads import words
from edgedec.hw.blocks.pipeline import carried, check, delayed, every
from edgedec.hw.blocks.resources import Resources

__all__ = ["AbsoluteMaximum"]


class AbsoluteMaximum(CostedComponent):
    """Determine max |x| of each slot's vector.

    Parameters:
        slots: number of slots, 1 to 8.
        width: bits of an element, 2 to 64.

    Members:
        input: In(words(width, slots)). Symmetric values: -2**(width-1) must not occur. Not ready from a vector's last word
            until its result is taken.
        output: Out(stream of unsigned(width - 1) [slots]). One item per vector.

    Latency: 2 cycles from the last word's transfer to a valid output.
    Throughput: one word per cycle.
    Source: derived here.
    """

    def __init__(self, *, slots: int, width: int = 27) -> None:
        check("slots", slots, 1, 8)
        check("width", width, 2, 64)
        result = stream.Signature(data.ArrayLayout(unsigned(width - 1), slots))
        super().__init__(lambda: {"input": In(words(width, slots)), "output": Out(result)})
        self._slots, self._width = slots, width

    @property
    def resources(self) -> Resources:
        slots, width = self._slots, self._width
        return Resources(lut=44 * width // 27 * slots + 4, ff=2 * (width - 1) * slots + 5)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, sink = self.input, self.output
        is_open = Signal(init=1)
        first = Signal(init=1)
        m.d.comb += source.ready.eq(is_open)
        valid = delayed(m, 1, source.valid & is_open)
        last = carried(m, 1, source.p.last)
        with m.If(sink.valid & sink.ready):
            m.d.sync += [sink.valid.eq(0), is_open.eq(1)]
        with m.If(source.valid & is_open & source.p.last):
            m.d.sync += is_open.eq(0)
        with m.If(valid):
            m.d.sync += first.eq(last)
            with m.If(last):
                m.d.sync += sink.valid.eq(1)
        least = -(1 << (self._width - 1))
        usable = every([source.p["values"][0][slot] != least for slot in range(self._slots)])
        contract(m, ~source.valid | usable, "The least number of the width does not occur")
        for slot in range(self._slots):
            x = source.p["values"][0][slot]
            # An exclusive or and an adder that share their LUTs.
            magnitude = carried(m, 1, ((x ^ x[-1].replicate(self._width)) + x[-1])[: self._width - 1])
            most = Signal(self._width - 1, name=f"most_{slot}", reset_less=True)
            with m.If(valid & (first | (magnitude > most))):
                m.d.sync += most.eq(magnitude)
            m.d.comb += sink.payload[slot].eq(most)
        return m
