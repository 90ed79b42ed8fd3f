"""Statistics of a vector for a quantizer and a norm, formed as its words pass."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import sums, words
from edgedec.hw.blocks.pipeline import check, fork
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.vector.absolute_maximum import AbsoluteMaximum
from edgedec.hw.vector.sums_of_squares import SumsOfSquares

__all__ = ["RowStatistics"]


class RowStatistics(CostedComponent):
    """Determine the largest absolute value and, with ``squares``, the sums of squares of each slot's vector.

    Parameters:
        slots: number of slots, 1 to 8.
        lanes: elements of a word, 1 to 64.
        squares: whether to form the sums of squares; without them they are 0 and cost nothing.

    Members:
        input: In(words(27, slots, lanes)). ``fork`` of edgedec.hw.blocks.pipeline can send the same words to another
        component
            as well.
        output: Out(sums(slots)). One item per vector.

    Latency: ceil(log2(lanes)) + 1 cycles from the last word's transfer, + 3 with squares.
    Throughput: one word per cycle, across vectors too; stalls only if a vector ends while the previous result is not
        taken, or within two cycles of the previous end.
    Source: docs/integer-profile.md, "RMS norm" and "Quantize".
    """

    def __init__(self, *, slots: int, lanes: int = 1, squares: bool) -> None:
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 64)
        super().__init__(lambda: {"input": In(words(27, slots, lanes)), "output": Out(sums(slots))})
        self._slots = slots
        self._maximum = AbsoluteMaximum(slots=slots, lanes=lanes)
        self._squares = SumsOfSquares(slots=slots, lanes=lanes) if squares else None

    @property
    def resources(self) -> Resources:
        squares = self._squares.resources if self._squares is not None else Resources()
        return self._maximum.resources + squares

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        sink = self.output
        m.submodules.maximum = maximum = self._maximum
        m.d.comb += sink.p.absmax.eq(maximum.output.payload)
        if self._squares is None:
            fork(m, self.input, [maximum.input])
            m.d.comb += [sink.valid.eq(maximum.output.valid), maximum.output.ready.eq(sink.ready)]
            return m
        m.submodules.squares = squares = self._squares
        fork(m, self.input, [maximum.input, squares.input])
        m.d.comb += [
            sink.valid.eq(maximum.output.valid & squares.output.valid),
            maximum.output.ready.eq(sink.ready & squares.output.valid),
            squares.output.ready.eq(sink.ready & maximum.output.valid),
        ]
        for slot in range(self._slots):
            for name in ("small", "big"):
                m.d.comb += sink.p[name][slot].eq(squares.output.payload[slot][name])
        return m
