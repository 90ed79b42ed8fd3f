"""Conversion of unsigned integers to a mantissa and a bit length."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check, pipeline
from edgedec.hw.blocks.resources import Resources

__all__ = ["Normalize"]


class Normalize(CostedComponent):
    """Compute the bit length of x, and shift x so that its highest one is the highest bit of ``mantissa_bits``.
    Low bits are dropped. With 16 mantissa bits this is the integer profile's norm16. x = 0 gives mantissa 0 and length 0.

    Parameters:
        bits: bits of x, ``mantissa_bits`` to 64.
        mantissa_bits: bits of the mantissa, 1 to 64.
        tag_bits: bits of a number that travels with x, 0 to 8.

    Members:
        input: In(stream {value, tag}).
        output: Out(stream {mantissa, length, tag}).

    Latency: ceil(log2(bits)) + 1 cycles. Throughput: one per cycle.
    Source: derived here; each stage halves the search.
    """

    def __init__(self, *, bits: int, mantissa_bits: int = 16, tag_bits: int = 0) -> None:
        check("mantissa_bits", mantissa_bits, 1, 64)
        check("bits", bits, mantissa_bits, 64)
        check("tag_bits", tag_bits, 0, 8)
        self._bits = bits
        operand = data.StructLayout({"value": unsigned(bits), "tag": unsigned(tag_bits)})
        result = data.StructLayout(
            {"mantissa": unsigned(mantissa_bits), "length": range(bits + 1), "tag": unsigned(tag_bits)}
        )
        self._mantissa_bits, self._tag_bits = mantissa_bits, tag_bits
        super().__init__(lambda: {"input": In(stream.Signature(operand)), "output": Out(stream.Signature(result))})

    @property
    def resources(self) -> Resources:
        bits, mantissa_bits, tag_bits = self._bits, self._mantissa_bits, self._tag_bits
        steps = (bits - 1).bit_length()
        # A stage keeps only the bits that the remaining shifts can move into the mantissa.
        kept = sum(min(bits, mantissa_bits + (1 << step) - 1) for step in range(steps))
        control = steps * (steps + 1) // 2 + bits.bit_length() + (steps + 1) * (tag_bits + 1)
        return Resources(lut=kept + 15, ff=kept + mantissa_bits + control)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        steps = (self._bits - 1).bit_length()
        enable, _ = pipeline(m, self.output, self.input.valid, steps + 1)
        m.d.comb += self.input.ready.eq(enable)
        x = self.input.p.value
        zeros = Signal(0)
        tag = self.input.p.tag
        for step in reversed(range(steps)):
            span = 1 << step
            shifted = Signal(self._bits, reset_less=True)
            leading_zeros = Signal(steps - step, reset_less=True)
            next_tag = Signal.like(tag, reset_less=True)
            empty = ~x[-span:].any()
            with m.If(enable):
                m.d.sync += [
                    shifted.eq(Mux(empty, x << span, x)),
                    leading_zeros.eq(Cat(empty, zeros)),
                    next_tag.eq(tag),
                ]
            x, zeros, tag = shifted, leading_zeros, next_tag
        out = self.output.p
        with m.If(enable):
            m.d.sync += [
                out.mantissa.eq(x[self._bits - len(out.mantissa) :]),
                out.length.eq(Mux(x[-1], self._bits - zeros, 0)),
                out.tag.eq(tag),
            ]
        return m
