"""Root mean square normalization: gain times input is computed at once, and the root is applied by the quantizer.

The component has the name of the operation in ``edgedec/ops.py`` that it computes.
"""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.isqrt import Root
from edgedec.hw.blocks.normalize import Normalize
from edgedec.hw.blocks.payloads import maxima, roots, scale, words
from edgedec.hw.blocks.pipeline import carried, check, every, fork, pipeline
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.vector.absolute_maximum import AbsoluteMaximum
from edgedec.hw.vector.sums_of_squares import SumsOfSquares

__all__ = ["RmsNorm"]

_WIDE = 27  # bits of an element
_GAIN_SHIFT = 15  # fraction bits of a gain
_SUM_BITS = 49  # bits of a sum of squares with eps
_COARSE = 9  # bits dropped from the large elements before they are squared
_SCALE_BITS = scale.size  # bits of a root


class RmsNorm(CostedComponent):
    """Compute y = rs(x * g, 15), its largest absolute value, and the root mean square of x.

    Parameters:
        slots: number of slots, 1 to 8.
        lanes: elements of a word, 1 to 64.

    Members:
        input: In(words(27, slots, lanes)). x.
        gains: In(stream of signed(16) [lanes]). g, one item per word, the same for all slots; -32768 must not occur.
        eps: In(stream of unsigned(48)). E, one item per vector; only the roots wait for it.
        output: Out(words(27, slots, lanes)). y.
        maxima: Out(maxima(slots)). One item per vector, with ``normed`` set.
        roots: Out(roots(slots)). One item per vector.

    Latency: 3 cycles from a word's transfer to y. From the last word's transfer: 3 + ceil(log2(lanes)) + 1 to the
        maxima, ceil(log2(lanes)) + 12 + 18 * slots to the roots.
    Throughput: one word per cycle, across vectors too; it stalls only if a vector ends while the roots or maxima of the
        previous one are not taken, or its roots not computed.
    Source: docs/integer-profile.md, "RMS norm". One 27 x 18 and one 18 x 18 multiplication per lane and slot.
    """

    def __init__(self, *, slots: int, lanes: int = 1) -> None:
        check("slots", slots, 1, 8)
        check("lanes", lanes, 1, 64)
        super().__init__(
            lambda: {
                "input": In(words(_WIDE, slots, lanes)),
                "gains": In(stream.Signature(data.ArrayLayout(signed(16), lanes))),
                "eps": In(stream.Signature(unsigned(48))),
                "output": Out(words(_WIDE, slots, lanes)),
                "maxima": Out(maxima(slots)),
                "roots": Out(roots(slots)),
            }
        )
        self._slots, self._lanes = slots, lanes
        self._squares = SumsOfSquares(slots=slots, lanes=lanes)
        self._maximum = AbsoluteMaximum(slots=slots, lanes=lanes)
        self._normalizer = Normalize(bits=_SUM_BITS, mantissa_bits=32, tag_bits=1)
        self._rooter = Root(bits=32)

    @property
    def resources(self) -> Resources:
        slots, lanes = self._slots, self._lanes
        statistics = self._maximum.resources + self._squares.resources
        shared = self._normalizer.resources + self._rooter.resources
        element, per_slot = Resources(lut=24, ff=87, dsp=1), Resources(lut=30)
        return statistics + shared + element * (slots * lanes) + per_slot * slots + Resources(lut=95, ff=250)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, gains, y = self.input, self.gains, words(_WIDE, self._slots, self._lanes).create()
        m.submodules.squares, m.submodules.maximum = squares, maximum = self._squares, self._maximum
        enable, _ = pipeline(m, y, source.valid & gains.valid & squares.input.ready, 3)
        m.d.comb += [
            source.ready.eq(enable & gains.valid & squares.input.ready),
            gains.ready.eq(enable & source.valid & squares.input.ready),
            squares.input.payload.eq(source.payload),
            squares.input.valid.eq(enable & source.valid & gains.valid),
            y.p.last.eq(carried(m, enable, source.p.last, 3)),
        ]
        usable = every([gains.payload[lane] != -(1 << 15) for lane in range(self._lanes)])
        contract(m, ~gains.valid | usable, "A gain is above the least number of 16 bits")
        for lane in range(self._lanes):
            gain = carried(m, enable, gains.payload[lane])
            for slot in range(self._slots):
                x = carried(m, enable, source.p["values"][lane][slot])
                product = carried(m, enable, x * gain)
                rounded = product[_GAIN_SHIFT:].as_signed() + product[_GAIN_SHIFT - 1]
                m.d.comb += y.p["values"][lane][slot].eq(carried(m, enable, rounded[:_WIDE].as_signed()))
        fork(m, y, [self.output, maximum.input])
        m.d.comb += [
            self.maxima.valid.eq(maximum.output.valid),
            self.maxima.p.absmax.eq(maximum.output.payload),
            self.maxima.p.normed.eq(1),
            maximum.output.ready.eq(self.maxima.ready),
        ]
        self._find_roots(m, squares.output)
        return m

    def _find_roots(self, m: Module, sums: Any) -> None:
        """Compute the roots slot by slot; ``sums`` and ``eps`` are held until all are done."""
        m.submodules.normalize, m.submodules.root = normalizer, rooter = self._normalizer, self._rooter
        sent, received, begun, done = Signal(range(self._slots + 1)), Signal(range(self._slots)), Signal(), Signal()
        m.d.comb += begun.eq(sums.valid & self.eps.valid & ~self.roots.valid & (sent != self._slots))
        enable, _ = pipeline(m, normalizer.input, begun, 2)
        small = carried(m, enable, sums.payload[sent].small + self.eps.payload)
        big = carried(m, enable, sums.payload[sent].big)
        coarse = big.any()
        total = Mux(coarse, big + (small >> 2 * _COARSE), small | ~small.any())
        m.d.comb += [
            normalizer.input.p.value.eq(carried(m, enable, total)),
            normalizer.input.p.tag.eq(carried(m, enable, coarse)),
        ]
        normal, exponent = normalizer.output, Signal(signed(8))
        halved = Signal(signed(6))  # (32 - length) >> 1: half of the even shift that brings the sum to 31 or 32 bits
        m.d.comb += [
            halved.eq((32 - normal.p.length) >> 1),
            rooter.input.payload.eq(Mux(normal.p.length[0], normal.p.mantissa >> 1, normal.p.mantissa)),
            rooter.input.valid.eq(normal.valid),
            normal.ready.eq(rooter.input.ready),
            rooter.output.ready.eq(1),
            done.eq(rooter.output.valid & (received == self._slots - 1)),
            sums.ready.eq(done),
            self.eps.ready.eq(done),
        ]
        with m.If(self.roots.ready):
            m.d.sync += self.roots.valid.eq(0)
        with m.If(begun & enable):
            m.d.sync += sent.eq(sent + 1)
        with m.If(normal.valid & normal.ready):
            m.d.sync += exponent.eq(Mux(normal.p.tag, _COARSE, 0) - halved)
        with m.If(rooter.output.valid):
            earlier = self.roots.payload.as_value()[_SCALE_BITS:]
            m.d.sync += self.roots.payload.eq(Cat(earlier, rooter.output.payload, exponent))
            m.d.sync += received.eq(received + 1)
        with m.If(done):
            m.d.sync += [sent.eq(0), received.eq(0), self.roots.valid.eq(1)]
