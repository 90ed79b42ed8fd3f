"""Quantization of queries, keys and values to the codes that attention multiplies."""

from typing import Any

from amaranth.hdl import C, Cat, Const, Module, Mux, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.multiply import STAGES as MULTIPLY
from edgedec.hw.blocks.multiply import multiply
from edgedec.hw.blocks.payloads import word, words
from edgedec.hw.blocks.pipeline import carried, check, clamped, delayed, saturate
from edgedec.hw.blocks.resources import Resources

__all__ = ["Coder", "constants", "settings"]

_NARROW = 18  # bits of an element
_QUERY_BITS, _CODE_BITS = 12, 8  # bits of a query's code, of a key's or a value's
_STAGES = MULTIPLY + 5  # registers of the arithmetic


def constants() -> data.StructLayout:
    """Return an element's constants for all slots: its column's mantissa, and the middle to subtract, 0 except for keys."""
    return data.StructLayout({"mantissa": unsigned(16), "middle": signed(_NARROW)})


def settings() -> data.StructLayout:
    """Return the settings of a vector: ``narrow`` for codes of 8 bits instead of 12; ``shift`` 0 to 34, for all columns."""
    return data.StructLayout({"narrow": 1, "shift": unsigned(6)})


class Coder(CostedComponent):
    """Compute code = sat(rs((x - middle) * mantissa, shift), 12 or 8).

    Parameters:
        slots: number of slots, 1 to 8.

    Members:
        settings: In(stream settings()). One item per vector, taken with its last element; steady until then.
        constants: In(stream constants()). One item per element.
        input: In(words(18, slots, 1)). Elements.
        output: Out(words(12, slots, 1), always ready). Codes; those of 8 bits are sign-extended.

    Latency: 8 cycles. Throughput: one element per cycle, across vectors too.
    Source: docs/integer-profile.md, "Attention". One 19 x 17 multiplication per slot.
    """

    def __init__(self, *, slots: int) -> None:
        check("slots", slots, 1, 8)
        super().__init__(
            lambda: {
                "settings": In(stream.Signature(settings())),
                "constants": In(stream.Signature(constants())),
                "input": In(words(_NARROW, slots, 1)),
                "output": Out(stream.Signature(word(_QUERY_BITS, slots), always_ready=True)),
            }
        )
        self._slots = slots

    @property
    def resources(self) -> Resources:
        """Estimate of the cost: above all two shifts of 36 bits that choose among 5 and 8."""
        slots = self._slots
        return Resources(lut=230 * slots + 7, ff=205 * slots + 24, dsp=slots)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        source, sink, of, always = self.input, self.output, self.constants, Const(1)
        takes = source.valid & of.valid & self.settings.valid
        m.d.comb += [
            source.ready.eq(of.valid & self.settings.valid),
            of.ready.eq(source.valid & self.settings.valid),
            self.settings.ready.eq(of.valid & source.valid & source.p.last),
            sink.valid.eq(delayed(m, always, takes, _STAGES, name="leaves")),
            sink.p.last.eq(carried(m, always, source.p.last, _STAGES)),
        ]
        shift = carried(m, always, self.settings.p.shift, MULTIPLY)
        coarse = Cat(C(0, 3), shift[3:])
        fine = carried(m, always, shift[:3])
        narrow = carried(m, always, self.settings.p.narrow, _STAGES - 1)
        for slot in range(self._slots):
            x = source.p["values"][0][slot] - of.p.middle
            product = multiply(m, f"product_{slot}", x, of.p.mantissa)
            # From here on the lowest bit is the one that was shifted out last.
            shifted = carried(m, always, Cat(0, product).as_signed() >> coarse)
            y = carried(m, always, clamped(carried(m, always, shifted >> fine, name="unclamped"), _QUERY_BITS))
            rounded = carried(m, always, (y[1:].as_signed() + y[0]).as_signed())
            code = Mux(narrow, saturate(rounded, _CODE_BITS), saturate(rounded, _QUERY_BITS))
            m.d.comb += sink.p["values"][0][slot].eq(carried(m, always, code, name="result"))
        return m
