"""Sums of squares of a vector, formed as its words pass."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import words
from edgedec.hw.blocks.pipeline import carried, check, delayed, reduced
from edgedec.hw.blocks.resources import Resources

__all__ = ["SumsOfSquares"]

_NARROW = 18  # bits of an element whose square is exact
_COARSE = 9  # bits dropped from the other elements
_SUM_BITS = 48  # bits of a sum


class SumsOfSquares(CostedComponent):
    """Form two exact sums of each slot's vector: x * x over the x that fit 18 bits, and (x >> 9)**2 over the others.

    Parameters:
        slots: number of slots, 1 to 8.
        lanes: elements of a word, 1 to 64.

    Members:
        input: In(words(27, slots, lanes)).
        output: Out(stream of {small, big: unsigned(48)} [slots]). One item per vector.

    Latency: ceil(log2(lanes)) + 3 cycles from the last word's transfer to a valid output.
    Throughput: one word per cycle, across vectors too; stalls only if a vector ends while the previous result is not
        taken.
    Source: docs/integer-profile.md, "RMS norm". One 18 x 18 multiplication per lane and slot.
    """

    def __init__(self, *, slots: int, lanes: int = 1) -> None:
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 64)
        sums = data.StructLayout({"small": unsigned(_SUM_BITS), "big": unsigned(_SUM_BITS)})
        super().__init__(
            lambda: {
                "input": In(words(27, slots, lanes)),
                "output": Out(stream.Signature(data.ArrayLayout(sums, slots))),
            }
        )
        self._slots, self._lanes = slots, lanes

    @property
    def resources(self) -> Resources:
        slots, lanes = self._slots, self._lanes
        return Resources(lut=127 * lanes + 65, ff=163 * lanes + 86, dsp=lanes) * slots + Resources(lut=2, ff=7)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, sink, enable = self.input, self.output, Signal()
        stages = 2 + (self._lanes - 1).bit_length()
        valid = delayed(m, enable, source.valid, stages)
        last = carried(m, enable, source.p.last, stages)
        done, fresh = Signal(), Signal(init=1)
        m.d.comb += [
            enable.eq(~(valid & last & sink.valid & ~sink.ready)),
            source.ready.eq(enable),
            done.eq(enable & valid & last),
        ]
        with m.If(sink.ready):
            m.d.sync += sink.valid.eq(0)
        with m.If(done):
            m.d.sync += sink.valid.eq(1)
        with m.If(enable & valid):
            m.d.sync += fresh.eq(last)
        for slot in range(self._slots):
            squares = [self._square(m, enable, source.p["values"][lane][slot]) for lane in range(self._lanes)]
            for name, sign in (("small", 1), ("big", 0)):
                terms = [Mux(fits == sign, square, 0) for square, fits in squares]
                term, _ = reduced(m, enable, terms, lambda a, b: a + b)
                total = Signal(_SUM_BITS, name=f"{name}_{slot}", reset_less=True)
                result = Signal(_SUM_BITS, name=f"{name}_{slot}_found", reset_less=True)
                now = Mux(fresh, 0, total) + term
                with m.If(enable & valid):
                    m.d.sync += total.eq(now)
                with m.If(done):
                    m.d.sync += result.eq(now)
                m.d.comb += sink.payload[slot][name].eq(result)
        return m

    def _square(self, m: Module, enable: Value, x: Value) -> tuple[Signal, Signal]:
        """Return the square, and whether x fits 18 bits, two registers later."""
        top = x[_NARROW - 1 :]
        fits = top.all() | ~top.any()
        operand = carried(m, enable, Mux(fits, x[:_NARROW].as_signed(), x[_COARSE:].as_signed()))
        square = carried(m, enable, (operand * operand)[: 2 * _NARROW - 1])
        return square, carried(m, enable, fits, 2)
