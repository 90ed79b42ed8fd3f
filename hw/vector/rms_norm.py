"""Root mean square normalization: gain times input is computed at once, and the root is applied by the quantizer.

The component has the name of the operation in ``edgedec/graph/ops.py`` that it computes.
"""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.isqrt import Root
from edgedec.hw.blocks.multiply import STAGES, multiply
from edgedec.hw.blocks.normalize import Normalize
from edgedec.hw.blocks.payloads import roots, scale, word, words
from edgedec.hw.blocks.pipeline import carried, check, delayed
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.vector.sums_of_squares import SumsOfSquares

__all__ = ["RmsNorm"]

_WIDE = 27  # bits of an element
_GAIN_BITS, _GAIN_SHIFT = 16, 15  # bits of a gain, and fraction bits of these
_SUM_BITS = 49  # bits of a sum of squares with eps
_COARSE = 9  # bits dropped from the large elements before they are squared
_SCALE_BITS = scale.size  # bits of a root
_ROOT_BITS = 32  # bits of the number whose root is taken
_ROOT_CYCLES = _ROOT_BITS // 2 + 2  # cycles from a root to the next
_SUMMED = 4  # registers between the sums of squares and the normalizer


class RmsNorm(CostedComponent):
    """Compute y = rs(x * g, 15), and the root mean square of x.

    Parameters:
        slots: number of slots, 1 to 8.

    Members:
        input: In(words(27, slots)). x. Not ready from a vector's last word until its roots are taken.
        gains: In(stream of signed(16) [1]). g, one item per word, the same for all slots; -32768 must not occur.
        eps: In(stream of unsigned(48)). E, one item per vector; only the roots wait for it.
        output: Out(words(27, slots), always ready). y.
        roots: Out(roots(slots)). One item per vector.

    Latency: 4 cycles from a word's transfer to y, 16 + 18 * slots from the last word's transfer to the roots.
    Throughput: one word per cycle. Nothing in it stalls within a vector.
    Source: docs/integer-profile.md, "RMS norm". One 27 x 16 and one 18 x 18 multiplication per slot.
    """

    def __init__(self, *, slots: int) -> None:
        check("slots", slots, 1, 8)
        super().__init__(
            lambda: {
                "input": In(words(_WIDE, slots)),
                "gains": In(stream.Signature(data.ArrayLayout(signed(_GAIN_BITS), 1))),
                "eps": In(stream.Signature(unsigned(48))),
                "output": Out(stream.Signature(word(_WIDE, slots), always_ready=True)),
                "roots": Out(roots(slots)),
            }
        )
        self._slots = slots
        self._squares = SumsOfSquares(slots=slots)
        self._normalizer = Normalize(bits=_SUM_BITS, mantissa_bits=32, tag_bits=1)
        self._rooter = Root(bits=_ROOT_BITS)

    @property
    def resources(self) -> Resources:
        # Fitted as a whole: in it the sums of squares take fewer LUTs than by themselves.
        shared = self._normalizer.resources + self._rooter.resources + Resources(lut=144, ff=379)
        return shared + Resources(lut=117, ff=319, dsp=2) * self._slots

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, gains, sink = self.input, self.gains, self.output
        m.submodules.squares = squares = self._squares
        is_open = Signal(init=1)
        enters = Signal()
        m.d.comb += [
            enters.eq(source.valid & gains.valid & is_open),
            source.ready.eq(gains.valid & is_open),
            gains.ready.eq(source.valid & is_open),
            squares.input.payload.eq(source.payload),
            squares.input.valid.eq(enters),
            sink.valid.eq(delayed(m, 1, enters, STAGES + 1)),
            sink.p.last.eq(carried(m, 1, source.p.last, STAGES + 1)),
        ]
        contract(
            m,
            ~gains.valid | (gains.payload[0] != -(1 << (_GAIN_BITS - 1))),
            "A gain is above the least number of 16 bits",
        )
        contract(m, ~enters | squares.input.ready, "The sums of squares are taken before the next vector begins")
        with m.If(self.roots.valid & self.roots.ready):
            m.d.sync += is_open.eq(1)
        with m.If(enters & source.p.last):
            m.d.sync += is_open.eq(0)
        for slot in range(self._slots):
            product = multiply(m, f"product_{slot}", source.p["values"][0][slot], gains.payload[0])
            rounded = product[_GAIN_SHIFT:].as_signed() + product[_GAIN_SHIFT - 1]
            m.d.comb += sink.p["values"][0][slot].eq(carried(m, 1, rounded[:_WIDE].as_signed(), name="normed"))
        self._find_roots(m, squares.output)
        return m

    def _find_roots(self, m: Module, sums: Any) -> None:
        """Compute the roots slot by slot; ``sums`` and ``eps`` are held until all are done."""
        m.submodules.normalize, m.submodules.root = normalizer, rooter = self._normalizer, self._rooter
        sent = Signal(range(self._slots + 1))
        received = Signal(range(self._slots))
        pause = Signal(range(_ROOT_CYCLES))
        begun = Signal()
        done = Signal()
        m.d.comb += begun.eq(sums.valid & self.eps.valid & (sent != self._slots) & (pause == 0))
        # A slot begins when the root of the one before it is done, so that nothing has to wait for the rooter.
        with m.If(pause != 0):
            m.d.sync += pause.eq(pause - 1)
        with m.If(begun):
            m.d.sync += [sent.eq(sent + 1), pause.eq(_ROOT_CYCLES - 1)]
        total, coarse = self._total(m, sums.payload[sent])
        m.d.comb += [
            normalizer.input.p.value.eq(total),
            normalizer.input.p.tag.eq(coarse),
            normalizer.input.valid.eq(delayed(m, 1, begun, _SUMMED)),
        ]
        normal = normalizer.output
        exponent = Signal(signed(8))
        halved = Signal(signed(6))  # (32 - length) >> 1: half of the even shift that brings the sum to 31 or 32 bits
        m.d.comb += [
            halved.eq((32 - normal.p.length) >> 1),
            rooter.input.payload.eq(Mux(normal.p.length[0], normal.p.mantissa >> 1, normal.p.mantissa)),
            rooter.input.valid.eq(normal.valid),
            normal.ready.eq(1),
            rooter.output.ready.eq(1),
            done.eq(rooter.output.valid & (received == self._slots - 1)),
            sums.ready.eq(done),
            self.eps.ready.eq(done),
        ]
        contract(m, ~normal.valid | rooter.input.ready, "The root of a slot is done when that of the next one begins")
        with m.If(normal.valid):
            m.d.sync += exponent.eq(Mux(normal.p.tag, _COARSE, 0) - halved)
        with m.If(self.roots.ready):
            m.d.sync += self.roots.valid.eq(0)
        with m.If(rooter.output.valid):
            earlier = self.roots.payload.as_value()[_SCALE_BITS:]
            m.d.sync += self.roots.payload.eq(Cat(earlier, rooter.output.payload, exponent))
            m.d.sync += received.eq(received + 1)
        with m.If(done):
            m.d.sync += [sent.eq(0), received.eq(0), self.roots.valid.eq(1)]

    def _total(self, m: Module, sums: Any) -> tuple[Signal, Signal]:
        """Return the sum of squares with eps, and whether it is coarse, after ``_SUMMED`` registers."""
        chosen_small = carried(m, 1, sums.small)
        chosen_big = carried(m, 1, sums.big)
        small = carried(m, 1, chosen_small + self.eps.payload)
        big = carried(m, 1, chosen_big)
        some_big = carried(m, 1, _nonzero_groups(chosen_big))
        fine = carried(m, 1, small)
        both = carried(m, 1, (big + (small >> 2 * _COARSE))[:_SUM_BITS])
        is_coarse = carried(m, 1, some_big.any())
        some_small = carried(m, 1, _nonzero_groups(small))
        total = carried(m, 1, Mux(is_coarse, both, fine | ~some_small.any()))
        coarse = carried(m, 1, is_coarse)
        return total, coarse


def _nonzero_groups(x: Any) -> Any:
    """Return a bit for each six bits of ``x``, the inputs of a LUT: whether they are not all zero."""
    return Cat(x[at : at + 6].any() for at in range(0, len(x), 6))
