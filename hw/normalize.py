"""Unsigned integers as a mantissa and a length."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.component import CostedComponent
from edgedec.hw.pipeline import check, pipeline
from edgedec.hw.resources import Resources

__all__ = ["Normalize"]


class Normalize(CostedComponent):
    """Bit length of x, and x shifted so that its highest one is the highest bit of ``mantissa_bits``; low bits are dropped.

    With 16 mantissa bits this is the integer profile's norm16. x = 0 gives mantissa 0 and length 0.

    Parameters:
        bits: of x, ``mantissa_bits`` to 64.
        mantissa_bits: 1 to 64.
        tag_bits: of a number that travels with x, 0 to 8.

    Members:
        input: In(stream {value, tag}).
        output: Out(stream {mantissa, length, tag}).

    Latency: ceil(log2(bits)) + 1 cycles. Throughput: one per cycle.
    Source: derived here; one halving of the search per stage.
    """

    def __init__(self, *, bits: int, mantissa_bits: int = 16, tag_bits: int = 0) -> None:
        check("mantissa_bits", mantissa_bits, 1, 64)
        check("bits", bits, mantissa_bits, 64)
        check("tag_bits", tag_bits, 0, 8)
        self._bits = bits
        taken = data.StructLayout({"value": unsigned(bits), "tag": unsigned(tag_bits)})
        given = data.StructLayout(
            {"mantissa": unsigned(mantissa_bits), "length": range(bits + 1), "tag": unsigned(tag_bits)}
        )
        self._mantissa_bits, self._tag_bits = mantissa_bits, tag_bits
        super().__init__(lambda: {"input": In(stream.Signature(taken)), "output": Out(stream.Signature(given))})

    @property
    def resources(self) -> Resources:
        bits, mantissa_bits, tag_bits = self._bits, self._mantissa_bits, self._tag_bits
        steps = (bits - 1).bit_length()
        # Behind a stage only those bits are kept that the shifts still to come can bring into the mantissa.
        kept = sum(min(bits, mantissa_bits + (1 << step) - 1) for step in range(steps))
        control = steps * (steps + 1) // 2 + bits.bit_length() + (steps + 1) * (tag_bits + 1)
        return Resources(lut=kept + 15, ff=kept + mantissa_bits + control)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        steps = (self._bits - 1).bit_length()
        enable, _ = pipeline(m, self.output, self.input.valid, steps + 1)
        m.d.comb += self.input.ready.eq(enable)
        x, zeros, tag = self.input.p.value, Signal(0), self.input.p.tag
        for step in reversed(range(steps)):
            span = 1 << step
            shifted, found = Signal(self._bits, reset_less=True), Signal(steps - step, reset_less=True)
            moved = Signal.like(tag, reset_less=True)
            empty = ~x[-span:].any()
            with m.If(enable):
                m.d.sync += [shifted.eq(Mux(empty, x << span, x)), found.eq(Cat(empty, zeros)), moved.eq(tag)]
            x, zeros, tag = shifted, found, moved
        out = self.output.p
        with m.If(enable):
            m.d.sync += [
                out.mantissa.eq(x[self._bits - len(out.mantissa) :]),
                out.length.eq(Mux(x[-1], self._bits - zeros, 0)),
                out.tag.eq(tag),
            ]
        return m
