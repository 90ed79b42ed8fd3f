"""Sums of squares of a vector, formed as its words pass."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.multiply import STAGES, multiply
from edgedec.hw.blocks.payloads import words
from edgedec.hw.blocks.pipeline import carried, check, delayed
from edgedec.hw.blocks.resources import Resources

__all__ = ["SumsOfSquares"]

_NARROW = 18  # bits of an element whose square is exact
_COARSE = 9  # bits dropped from the other elements
_SUM_BITS = 48  # bits of a sum
_SQUARED = 1 + STAGES  # registers before a sum


class SumsOfSquares(CostedComponent):
    """Form two exact sums of each slot's vector: x * x over the x that fit 18 bits, and (x >> 9)**2 over the others.

    Parameters:
        slots: number of slots, 1 to 8.

    Members:
        input: In(words(27, slots)). Not ready from a vector's last word until its sums are taken. A vector has fewer than
            2^14 words, because the sum of 2^14 squares of -2^17 does not fit.
        output: Out(stream of {small, big: unsigned(48)} [slots]). One item per vector.

    Latency: 5 cycles from the last word's transfer to a valid output.
    Throughput: one word per cycle.
    Source: docs/integer-profile.md, "RMS norm". One 18 x 18 multiplication per slot, and one adder: each square belongs to
        one of the two sums.
    """

    def __init__(self, *, slots: int) -> None:
        check("slots", slots, 1, 8)
        sums = data.StructLayout({"small": unsigned(_SUM_BITS), "big": unsigned(_SUM_BITS)})
        super().__init__(
            lambda: {
                "input": In(words(27, slots)),
                "output": Out(stream.Signature(data.ArrayLayout(sums, slots))),
            }
        )
        self._slots = slots

    @property
    def resources(self) -> Resources:
        return Resources(lut=168, ff=212, dsp=1) * self._slots + Resources(lut=6, ff=7)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, sink = self.input, self.output
        is_open = Signal(init=1)
        first = Signal(init=1)
        m.d.comb += source.ready.eq(is_open)
        valid = delayed(m, 1, source.valid & is_open, _SQUARED)
        last = carried(m, 1, source.p.last, _SQUARED)
        with m.If(sink.valid & sink.ready):
            m.d.sync += [sink.valid.eq(0), is_open.eq(1)]
        with m.If(source.valid & is_open & source.p.last):
            m.d.sync += is_open.eq(0)
        with m.If(valid):
            m.d.sync += first.eq(last)
            with m.If(last):
                m.d.sync += sink.valid.eq(1)
        for slot in range(self._slots):
            square, fits = self._square(m, slot, source.p["values"][0][slot])
            small = Signal(_SUM_BITS, name=f"small_{slot}", reset_less=True)
            big = Signal(_SUM_BITS, name=f"big_{slot}", reset_less=True)
            total = (square + Mux(first, 0, Mux(fits, small, big)))[:_SUM_BITS]
            for register, belongs in ((small, fits), (big, ~fits)):
                with m.If(valid & belongs):
                    m.d.sync += register.eq(total)
                with m.Elif(valid & first):
                    m.d.sync += register.eq(0)
            m.d.comb += [sink.payload[slot].small.eq(small), sink.payload[slot].big.eq(big)]
        return m

    def _square(self, m: Module, slot: int, x: Value) -> tuple[Value, Value]:
        """Return the square, and whether x fits 18 bits, ``_SQUARED`` registers later."""
        top = x[_NARROW - 1 :]
        fits = carried(m, 1, top.all() | ~top.any())
        element = carried(m, 1, x)
        operand = Mux(fits, element[:_NARROW].as_signed(), element[_COARSE:].as_signed()).as_signed()
        square = multiply(m, f"square_{slot}", operand, operand)[: 2 * _NARROW - 1]
        return square, carried(m, 1, fits, STAGES)
