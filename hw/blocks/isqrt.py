"""Integer square root, one bit per cycle."""

from typing import Any

from amaranth.hdl import C, Cat, Module, Mux, Signal, unsigned
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources

__all__ = ["Root"]


class Root(CostedComponent):
    """Compute the largest r with r * r <= v.

    Parameters:
        bits: bits of v, even, 2 to 64.

    Members:
        input: In(stream unsigned(bits)).
        output: Out(stream unsigned(bits / 2)).

    Latency: bits / 2 + 1 cycles from the input's transfer to a valid output.
    Throughput: one root in bits / 2 + 2 cycles.
    Source: the digit-by-digit method in base 2, derived here.
    """

    def __init__(self, *, bits: int = 32) -> None:
        check("bits", bits, 2, 64)
        if bits % 2:
            raise ValueError(f"bits must be even, not {bits!r}")
        self._bits = bits
        super().__init__(
            lambda: {
                "input": In(stream.Signature(unsigned(bits))),
                "output": Out(stream.Signature(unsigned(bits // 2))),
            }
        )

    @property
    def resources(self) -> Resources:
        bits = self._bits
        return Resources(lut=2 * bits + 10, ff=2 * bits + 2 + (bits // 2).bit_length())

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        half = self._bits // 2
        v = Signal(self._bits)
        root = Signal(half)
        remainder = Signal(half + 1)
        left = Signal(range(half + 1))
        trial = Signal(half + 3)
        difference = Signal(half + 4)
        m.d.comb += [
            trial.eq(Cat(v[-2:], remainder)),
            difference.eq(trial - Cat(C(1, 2), root)),
            self.output.payload.eq(root),
            self.input.ready.eq((left == 0) & ~self.output.valid),
        ]
        with m.If(left != 0):
            m.d.sync += [
                v.eq(v << 2),
                root.eq(Cat(~difference[-1], root)),
                remainder.eq(Mux(difference[-1], trial, difference)),
                left.eq(left - 1),
                self.output.valid.eq(left == 1),
            ]
        with m.If(self.output.valid & self.output.ready):
            m.d.sync += self.output.valid.eq(0)
        with m.If(self.input.valid & self.input.ready):
            m.d.sync += [v.eq(self.input.payload), root.eq(0), remainder.eq(0), left.eq(half)]
        return m
