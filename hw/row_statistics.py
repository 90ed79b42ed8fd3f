"""What a quantizer and a norm want to know of a vector, formed as its words pass."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, Out

from edgedec.hw import absolute_maximum, sums_of_squares
from edgedec.hw.absolute_maximum import AbsoluteMaximum
from edgedec.hw.pipeline import check, fork
from edgedec.hw.resources import Resources
from edgedec.hw.shapes import sums, words
from edgedec.hw.sums_of_squares import SumsOfSquares

__all__ = ["RowStatistics", "estimate"]


class RowStatistics(Component):
    """Largest absolute value and, if wanted, sums of squares of each slot's vector.

    Parameters:
        slots: 1 to 8.
        lanes: elements of a word, 1 to 64.
        squares: form the sums of squares; without them they are given as 0 and cost nothing.

    Members:
        input: In(words(27, slots, lanes)). Give it the words that another component takes in the same cycles: ``fork`` of
            edgedec.hw.pipeline does that.
        output: Out(sums(slots)). One item per vector.

    Latency: ceil(log2(lanes)) + 1 cycles from the last word's transfer, + 3 with squares.
    Throughput: a word per cycle, across vectors too; stops only if a vector ends while the one before it is not taken,
        or within two cycles of it.
    Source: docs/integer-profile.md, "RMS norm" and "Quantize".
    """

    def __init__(self, *, slots: int, lanes: int = 1, squares: bool) -> None:
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 64)
        super().__init__({"input": In(words(27, slots, lanes)), "output": Out(sums(slots))})
        self._slots, self._lanes, self._squares = slots, lanes, bool(squares)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        sink = self.output
        m.submodules.maximum = maximum = AbsoluteMaximum(slots=self._slots, lanes=self._lanes)
        m.d.comb += sink.p.absmax.eq(maximum.output.payload)
        if not self._squares:
            fork(m, self.input, [maximum.input])
            m.d.comb += [sink.valid.eq(maximum.output.valid), maximum.output.ready.eq(sink.ready)]
            return m
        m.submodules.squares = squares = SumsOfSquares(slots=self._slots, lanes=self._lanes)
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


def estimate(*, slots: int, lanes: int = 1, squares: bool) -> Resources:
    """Of a RowStatistics with these parameters."""
    maximum = absolute_maximum.estimate(slots=slots, lanes=lanes)
    return maximum + sums_of_squares.estimate(slots=slots, lanes=lanes) if squares else maximum
