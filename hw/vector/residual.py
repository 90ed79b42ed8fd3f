"""Saturating addition of two vectors."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import words
from edgedec.hw.blocks.pipeline import carried, check, pipeline, saturate
from edgedec.hw.blocks.resources import Resources

__all__ = ["Residual"]


class Residual(CostedComponent):
    """Compute sat(x + y) for each element.

    Parameters:
        slots: number of slots, 1 to 8.
        lanes: elements of a word, 1 to 64.
        width: bits of an element, 2 to 64.

    Members:
        input: In(words(width, slots, lanes)). The residual; its ``last`` becomes the output's.
        addend: In(words(width, slots, lanes)). A vector of the same length; its ``last`` is ignored.
        output: Out(words(width, slots, lanes)).

    Latency: 2 cycles. Throughput: one word per cycle.
    Source: docs/integer-profile.md, "Add, select rows".
    """

    def __init__(self, *, slots: int, lanes: int = 1, width: int = 27) -> None:
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 64)
        check("width", width, 2, 64)
        shape = words(width, slots, lanes)
        super().__init__(lambda: {"input": In(shape), "addend": In(shape), "output": Out(shape)})
        self._slots, self._lanes, self._width = slots, lanes, width

    @property
    def resources(self) -> Resources:
        slots, lanes, width = self._slots, self._lanes, self._width
        return Resources(lut=slots * lanes * (20 * width // 9), ff=slots * lanes * (2 * width + 1) + 4)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        x, y, sink = self.input, self.addend, self.output
        enable, _ = pipeline(m, sink, x.valid & y.valid, 2)
        m.d.comb += [x.ready.eq(enable & y.valid), y.ready.eq(enable & x.valid)]
        m.d.comb += sink.p.last.eq(carried(m, enable, x.p.last, 2))
        for lane in range(self._lanes):
            for slot in range(self._slots):
                total = carried(m, enable, x.p["values"][lane][slot] + y.p["values"][lane][slot])
                out = carried(m, enable, saturate(total, self._width))
                m.d.comb += sink.p["values"][lane][slot].eq(out)
        return m
