"""Quantization of vectors to int8 codes with one scale each."""

from typing import Any

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.credit_queue import CreditQueue
from edgedec.hw.blocks.divider import Divider
from edgedec.hw.blocks.multiply import STAGES, Multiplier, multiply
from edgedec.hw.blocks.normalize import Normalize
from edgedec.hw.blocks.payloads import maxima, roots, scales, word, words
from edgedec.hw.blocks.pipeline import carried, check
from edgedec.hw.blocks.resources import Resources, total

__all__ = ["Requantizer"]

_WIDE = 27  # bits of an element
_LARGEST = 127 << 25  # numerator of the reciprocals
_RECIPROCAL_BITS = 17  # bits of r
_LEAST_SHIFT = 9  # shift of a product for e = 0
_CODED = STAGES + 2  # registers between a word and its codes
_NORMAL = data.StructLayout({"mantissa": 16, "length": range(_WIDE)})


class Requantizer(CostedComponent):
    """Compute code = rs(y * r, e + 9) with (m16, e) = norm16(max |y|) and r = (127 * 2**25) // m16, and the scale.

    Parameters:
        slots: number of slots, 1 to 8.

    Members:
        maxima: In(maxima(slots)). One item per vector, before its words.
        roots: In(roots(slots)). One item per vector with ``normed``; only the scale waits for it.
        input: In(words(27, slots)). The vector, from the memory that held it while its maximum was determined.
        output: Out(words(8, slots)). Its codes, -127..127.
        scales: Out(scales(slots)). One item per vector: (m16, e - 16); after a norm the mantissa is m16 * 2**16 //
            root, reduced to 16 bits. It is (0, 0) if the vector is zero.

    Latency: slots + 26 cycles from the transfer of the maxima until words are taken, 7 from a word to its codes; the
        scales follow slots + 28 cycles after the maxima, or 19 after the roots.
    Throughput: one word per cycle; the next maxima are taken once the last word and the scales have left.
    Source: docs/integer-profile.md, "Quantize". One 27 x 18 multiplication per slot; one divider per slot,
        used for the reciprocal first and then for the scale.
    """

    def __init__(self, *, slots: int) -> None:
        check("slots", slots, 1, 8)
        super().__init__(
            lambda: {
                "maxima": In(maxima(slots)),
                "roots": In(roots(slots)),
                "input": In(words(_WIDE, slots)),
                "output": Out(words(8, slots)),
                "scales": Out(scales(slots)),
            }
        )
        self._slots = slots
        self._queue = CreditQueue(shape=word(8, slots), stages=_CODED)
        self._normalizer = Normalize(bits=_WIDE - 1)
        self._dividers = [
            Divider(numerator_bits=32, denominator_bits=16, quotient_bits=_RECIPROCAL_BITS) for _ in range(slots)
        ]

    @property
    def resources(self) -> Resources:
        slots = self._slots
        dividers = total(divider.resources for divider in self._dividers)
        product = Multiplier(x_bits=_WIDE, y_bits=_RECIPROCAL_BITS + 1).resources
        per_slot = product + Resources(lut=158, ff=100)
        one = self._normalizer.resources + self._queue.resources + Resources(lut=14)
        return dividers + per_slot * slots + one

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        normed = Signal()
        coding = Signal()
        second = Signal()
        finished = Signal()
        normals = Signal(data.ArrayLayout(_NORMAL, self._slots))
        collected = self._normalize(m, normals)
        begin, take, quotients, divided = self._divide(m, normals, second)
        reciprocals = [Signal(_RECIPROCAL_BITS, name=f"reciprocal_{slot}") for slot in range(self._slots)]
        self._codes(m, normals, reciprocals, coding)
        self._scale(m, normals, normed, quotients, finished)
        with m.FSM():
            with m.State("idle"):
                m.d.comb += self.maxima.ready.eq(~coding)
                m.d.sync += [normed.eq(self.maxima.p.normed), second.eq(0)]
                with m.If(self.maxima.valid & ~coding):
                    m.next = "normalize"
            with m.State("normalize"), m.If(collected):
                m.next = "divide"
            with m.State("divide"):
                m.d.comb += begin.eq(1)
                m.next = "reciprocals"
            with m.State("reciprocals"):
                m.d.comb += take.eq(1)
                with m.If(divided):
                    m.d.sync += [
                        reciprocal.eq(quotient) for reciprocal, quotient in zip(reciprocals, quotients, strict=True)
                    ]
                    m.d.sync += [coding.eq(1), second.eq(1)]
                    m.next = "scale"
            with m.State("scale"):
                m.d.comb += [begin.eq(normed & self.roots.valid), self.roots.ready.eq(normed)]
                with m.If(~normed | self.roots.valid):
                    m.next = "finish"
            with m.State("finish"):
                m.d.comb += [
                    finished.eq((~normed | divided) & (~self.scales.valid | self.scales.ready)),
                    take.eq(finished),
                ]
                with m.If(finished):
                    m.next = "idle"
        return m

    def _normalize(self, m: Module, normals: Any) -> Signal:
        """Pass the maxima through one normalizer into ``normals``; the result is high for one cycle when all are there."""
        m.submodules.normalize = component = self._normalizer
        waiting = Signal(data.ArrayLayout(_WIDE - 1, self._slots))
        sent = Signal(range(self._slots + 1))
        left = Signal(range(self._slots + 1))
        collected = Signal()
        operand, normal = component.input, component.output
        m.d.comb += [
            operand.p.value.eq(waiting[0]),
            operand.valid.eq(sent != 0),
            normal.ready.eq(1),
            collected.eq(normal.valid & (left == 1)),
        ]
        with m.If(operand.valid):  # its ready is always high
            m.d.sync += [waiting.eq(waiting.as_value() >> (_WIDE - 1)), sent.eq(sent - 1)]
        with m.If(normal.valid):
            m.d.sync += normals.eq(Cat(normals.as_value()[_NORMAL.size :], normal.p.mantissa, normal.p.length))
            m.d.sync += left.eq(left - 1)
        with m.If(self.maxima.valid & self.maxima.ready):
            m.d.sync += [waiting.eq(self.maxima.p.absmax), sent.eq(self._slots), left.eq(self._slots)]
        return collected

    def _divide(self, m: Module, normals: Any, second: Signal) -> tuple[Signal, Signal, list[Value], Value]:
        """Return the controls and results of one divider per slot, all in step: (begin, take, quotients, done).

        The quotients are the reciprocals, or with ``second`` the mantissas over the roots.
        """
        begin = Signal()
        take = Signal()
        dividers = self._dividers
        for slot, component in enumerate(dividers):
            m.submodules[f"divider_{slot}"] = component
            mantissa, root = normals[slot].mantissa, self.roots.payload[slot].mantissa
            m.d.comb += [
                component.input.p.numerator.eq(Mux(second, Cat(C(0, 16), mantissa), _LARGEST)),
                component.input.p.denominator.eq(Mux(second, root, mantissa)),
                component.input.valid.eq(begin),
                component.output.ready.eq(take),
            ]
        return begin, take, [component.output.payload for component in dividers], dividers[0].output.valid

    def _scale(self, m: Module, normals: Any, normed: Signal, quotients: list[Value], finished: Signal) -> None:
        """Load ``scales`` when ``finished``."""
        with m.If(self.scales.ready):
            m.d.sync += self.scales.valid.eq(0)
        with m.If(finished):
            m.d.sync += self.scales.valid.eq(1)
        for slot, quotient in enumerate(quotients):
            of, root, out = normals[slot], self.roots.payload[slot], self.scales.payload[slot]
            offset = Signal(signed(9))  # e - 16, or e - 32 less the root's exponent
            with m.If(~normed | (self.roots.valid & self.roots.ready)):
                m.d.sync += offset.eq(of.length - Mux(normed, root.exponent + 32, 16))
            long = quotient[16]
            with m.If(finished):
                m.d.sync += [
                    out.mantissa.eq(Mux(normed, Mux(long, quotient[1:], quotient), of.mantissa)),
                    out.exponent.eq(Mux(of.mantissa == 0, 0, offset + (normed & long))),
                ]

    def _codes(self, m: Module, normals: Any, reciprocals: list[Signal], coding: Signal) -> None:
        """Multiply words by the reciprocals, shift them in two steps, and queue the codes.

        Reciprocals and shifts change at the earliest six cycles after the last word has entered, when they have been used.
        """
        source, shape = self.input, word(8, self._slots)
        m.submodules.codes = queue = self._queue
        enters = Signal()
        result = Signal(shape)
        m.d.comb += [
            source.ready.eq(queue.room & coding),
            enters.eq(source.valid & queue.room & coding),
            queue.enter.eq(enters),
            queue.result.eq(result),
            result.last.eq(carried(m, 1, source.p.last, _CODED)),
        ]
        connect(m, queue.output, flipped(self.output))
        with m.If(enters & source.p.last):
            m.d.sync += coding.eq(0)
        for slot in range(self._slots):
            shift = normals[slot].length
            product = multiply(m, f"product_{slot}", source.p["values"][0][slot], reciprocals[slot])
            # From here on the lowest bit is the one that was shifted out last.
            coarse = carried(m, 1, (product[_LEAST_SHIFT - 1 :].as_signed() >> Cat(C(0, 2), shift[2:]))[:12])
            fine = (coarse >> shift[:2])[:9]
            m.d.comb += result["values"][0][slot].eq(carried(m, 1, (fine[1:] + fine[0])[:8], name="code"))
