"""Exact division of unsigned integers, one quotient bit per cycle."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources

__all__ = ["Divider"]


class Divider(CostedComponent):
    """Compute ``numerator // denominator`` by restoring subtraction.

    Parameters:
        numerator_bits: bits of the numerator, 1 to 64.
        denominator_bits: bits of the denominator, 1 to 64.
        quotient_bits: bits of the result, 1 to ``numerator_bits`` (the default). The leading
            ``numerator_bits - quotient_bits`` bits form the first remainder and cost no cycle.

    Members:
        input: In(stream {numerator, denominator}).
        output: Out(stream unsigned(quotient_bits)). The quotient, rounded down; all ones if it needs more bits or if
            the denominator is zero.

    Latency: quotient_bits + 1 cycles from the input's transfer to a valid output.
    Throughput: one division in quotient_bits + 2 cycles.
    Source: restoring division, derived here.
    """

    def __init__(self, *, numerator_bits: int, denominator_bits: int, quotient_bits: int | None = None) -> None:
        check("numerator_bits", numerator_bits, 1, 64)
        check("denominator_bits", denominator_bits, 1, 64)
        self._quotient_bits = numerator_bits if quotient_bits is None else quotient_bits
        check("quotient_bits", self._quotient_bits, 1, numerator_bits)
        self._denominator_bits = denominator_bits
        operands = data.StructLayout({"numerator": numerator_bits, "denominator": denominator_bits})
        self._numerator_bits = numerator_bits
        super().__init__(
            lambda: {
                "input": In(stream.Signature(operands)),
                "output": Out(stream.Signature(unsigned(self._quotient_bits))),
            }
        )

    @property
    def resources(self) -> Resources:
        numerator_bits, denominator_bits, bits = self._numerator_bits, self._denominator_bits, self._quotient_bits
        remainder = max(denominator_bits, numerator_bits - bits, 1)
        checked = denominator_bits // 2 if bits < numerator_bits else 0  # check that the quotient fits
        return Resources(
            lut=bits + 2 * remainder + 12 + checked, ff=bits + remainder + denominator_bits + 2 + bits.bit_length()
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bits, width = self._quotient_bits, self._denominator_bits
        numerator, divisor = self.input.p.numerator, self.input.p.denominator
        first_remainder = numerator[bits:] if bits < len(numerator) else Const(0, 1)
        quotient = Signal(bits)  # numerator bits leave at the top, quotient bits enter at the bottom
        remainder = Signal(max(width, len(first_remainder)))
        denominator = Signal(width)
        overflow = Signal()
        left = Signal(range(bits + 1))
        trial = Signal(len(remainder) + 1)
        difference = Signal(len(remainder) + 2)
        m.d.comb += [
            trial.eq(Cat(quotient[-1], remainder)),
            difference.eq(trial - denominator),
            self.output.payload.eq(quotient),
            self.input.ready.eq((left == 0) & ~self.output.valid),
        ]
        with m.If(left != 0):
            m.d.sync += [
                quotient.eq(Cat(~difference[-1] | overflow, quotient)),
                remainder.eq(Mux(difference[-1], trial, difference)),
                left.eq(left - 1),
                self.output.valid.eq(left == 1),
            ]
        with m.If(self.output.valid & self.output.ready):
            m.d.sync += self.output.valid.eq(0)
        with m.If(self.input.valid & self.input.ready):
            m.d.sync += [
                quotient.eq(numerator),
                remainder.eq(first_remainder),
                denominator.eq(divisor),
                overflow.eq(first_remainder >= divisor),
                left.eq(bits),
            ]
        return m
