"""Root mean square normalization of the rows of a matrix, before they are added to the residual."""

from typing import Any, Literal

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.credit_queue import CreditQueue
from edgedec.hw.blocks.divider import Divider
from edgedec.hw.blocks.multiply import STAGES as MULTIPLY
from edgedec.hw.blocks.multiply import multiply
from edgedec.hw.blocks.payloads import scale, word, words
from edgedec.hw.blocks.pipeline import carried, check, clamped, saturate
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.vector_memory import VectorMemory
from edgedec.hw.config import HEAD_NORM_ITEMS
from edgedec.hw.vector.rms_norm import RmsNorm

__all__ = ["OutputNorm"]

_WIDE = 27  # bits of an element
_ITEM_BITS, _EPS_BITS = 16, 48
_RECIPROCAL_BITS, _FACTOR_BITS = 32, 17  # a factor is (2^32 - 1) // root
_SHIFT_BITS, _LONGEST_SHIFT = 6, 47
_STAGES = 1 + MULTIPLY + 5  # registers from the output of the memory to a normed element


class OutputNorm(CostedComponent):
    """Compute sat(rs(y * R, sh), 27) for a vector; y = rs(x * g, 15), R = (2^32 - 1) // root, sh = shift + exponent.

    root * 2^exponent is the root of the sum of the squares of x, with eps; sh is clamped to 0 .. 47. The vector waits in a
    memory until its root is known.

    Parameters:
        slots: number of slots, 1 to 8.
        depth: elements of the memory, 1 to 16384; a vector has at most 16383.
        style: kind of memory, "block" or "ultra".

    Members:
        normed: In(1). The vector is normed. Otherwise it passes unchanged. It is steady from the first word that is
            offered until the last one has left.
        gains: In(stream of signed(16) [1]). Items of ``head_norm_items`` of edgedec.hw.compiler.constants: the first four
            are taken before the first word of a normed vector, the others with its words.
        input: In(words(27, slots)). A vector must not be offered before the last word of the one before it has left.
        output: Out(words(27, slots)). The same order, with ``last`` likewise.

    Latency: none without a norm. With one, 5 cycles to take the first gains, and from the last word to the normed first one
        37 * slots + 31.
    Throughput: one word per cycle into the memory, and out of it.
    Source: docs/integer-profile.md, "RMS norm". Three multiplications per slot, and one divider.
    """

    def __init__(self, *, slots: int, depth: int, style: Literal["block", "ultra"] = "block") -> None:
        check("slots", slots, 1, 8)
        check("depth", depth, 1, 1 << 14)
        self._slots = slots
        self._norm = RmsNorm(slots=slots)
        self._divider = Divider(numerator_bits=_RECIPROCAL_BITS, denominator_bits=16, quotient_bits=_FACTOR_BITS)
        self._memory = VectorMemory(width=_WIDE, slots=slots, depth=depth, style=style)
        self._results = CreditQueue(shape=word(_WIDE, slots), stages=_STAGES)
        super().__init__(
            lambda: {
                "normed": In(1),
                "gains": In(stream.Signature(data.ArrayLayout(signed(_ITEM_BITS), 1))),
                "input": In(words(_WIDE, slots)),
                "output": Out(words(_WIDE, slots)),
            }
        )

    @property
    def resources(self) -> Resources:
        parts = self._norm.resources + self._divider.resources + self._memory.resources + self._results.resources
        control = Resources(lut=40, ff=_ITEM_BITS * HEAD_NORM_ITEMS + 30)
        return parts + control + Resources(lut=310, ff=390, dsp=1) * self._slots

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.norm, m.submodules.divider, m.submodules.results = self._norm, self._divider, self._results
        m.submodules.memory = self._memory
        norming = Signal()
        header = Signal(_ITEM_BITS * HEAD_NORM_ITEMS, reset_less=True)
        taken = Signal()
        ended = Signal()
        self._control(m, norming, header, ended)
        self._enter(m, norming, header, taken, ended)
        self._leave(m, header[_EPS_BITS:][:_SHIFT_BITS])
        source, sink, results = self.input, self.output, self._results.output
        m.d.comb += [
            source.ready.eq(Mux(self.normed, taken, sink.ready)),
            Value.cast(sink.payload).eq(Mux(self.normed, results.payload.as_value(), source.payload.as_value())),
            sink.valid.eq(Mux(self.normed, results.valid, source.valid)),
            results.ready.eq(self.normed & sink.ready),
            ended.eq(results.valid & results.ready & results.p.last),
        ]
        return m

    def _control(self, m: Module, norming: Signal, header: Signal, ended: Signal) -> None:
        """Take the first items when a vector that is normed is offered, and then norm it."""
        items, norm = self.gains, self._norm
        before = Signal(range(HEAD_NORM_ITEMS))
        m.d.comb += norm.gains.payload.eq(items.payload)
        with m.FSM():
            with m.State("idle"), m.If(self.normed & self.input.valid):
                m.next = "header"
            with m.State("header"):
                m.d.comb += items.ready.eq(1)
                with m.If(items.valid):
                    m.d.sync += [header.eq(Cat(header[_ITEM_BITS:], items.payload[0])), before.eq(before + 1)]
                    with m.If(before == HEAD_NORM_ITEMS - 1):
                        m.next = "norm"
            with m.State("norm"):
                m.d.comb += [
                    norming.eq(1),
                    norm.gains.valid.eq(items.valid),
                    items.ready.eq(norm.gains.ready),
                ]
                with m.If(ended):
                    m.next = "idle"

    def _enter(self, m: Module, norming: Signal, header: Signal, taken: Signal, ended: Signal) -> None:
        """Pass words through the norm into the memory."""
        norm, source, memory = self._norm, self.input, self._memory
        whole = Signal()  # the last word of the vector was taken
        m.d.comb += [
            norm.input.payload.eq(source.payload),
            norm.input.valid.eq(source.valid & norming & ~whole),
            norm.eps.payload.eq(header[:_EPS_BITS]),
            norm.eps.valid.eq(1),
            taken.eq(norm.input.valid & norm.input.ready),
            memory.write.payload.eq(norm.output.payload),
            memory.write.valid.eq(norm.output.valid),
        ]
        with m.If(taken & source.p.last):
            m.d.sync += whole.eq(1)
        with m.If(ended):
            m.d.sync += whole.eq(0)

    def _leave(self, m: Module, base: Value) -> None:
        """Divide by the root of each slot in turn, then read the vector and scale it."""
        roots, divider, memory, results = self._norm.roots, self._divider, self._memory, self._results
        kept = Signal(data.ArrayLayout(scale, self._slots), reset_less=True)
        factors = Signal(data.ArrayLayout(unsigned(_FACTOR_BITS), self._slots), reset_less=True)
        shifts = Signal(data.ArrayLayout(unsigned(_SHIFT_BITS), self._slots), reset_less=True)
        sent = Signal()
        slot = Signal(range(self._slots))
        # Steady for long before a division ends.
        total = carried(m, 1, base + kept[0].exponent)
        shift = carried(m, 1, Mux(total < 0, 0, Mux(total > _LONGEST_SHIFT, _LONGEST_SHIFT, total))[:_SHIFT_BITS])
        m.d.comb += [
            divider.input.p.numerator.eq((1 << _RECIPROCAL_BITS) - 1),
            divider.input.p.denominator.eq(kept[0].mantissa),
            divider.output.ready.eq(1),
            memory.reads.p.length.eq(memory.written),
            results.enter.eq(memory.output.valid & results.room),
            memory.output.ready.eq(results.room),
        ]
        with m.FSM():
            with m.State("root"):
                m.d.comb += roots.ready.eq(1)
                m.d.sync += kept.eq(roots.payload)
                with m.If(roots.valid):
                    m.next = "divide"
            with m.State("divide"):
                m.d.comb += divider.input.valid.eq(~sent)
                with m.If(divider.input.valid & divider.input.ready):
                    m.d.sync += sent.eq(1)
                with m.If(divider.output.valid):
                    m.d.sync += [
                        sent.eq(0),
                        slot.eq(Mux(slot == self._slots - 1, 0, slot + 1)),
                        _shifted_in(kept, kept[0].as_value()),
                        _shifted_in(factors, divider.output.payload),
                        _shifted_in(shifts, shift),
                    ]
                    with m.If(slot == self._slots - 1):
                        m.next = "read"
            with m.State("read"):
                m.d.comb += memory.reads.valid.eq(1)
                with m.If(memory.reads.ready):
                    m.next = "root"
        self._scale(m, factors, shifts)

    def _scale(self, m: Module, factors: Any, shifts: Any) -> None:
        """Scale the words of the memory. No factor changes before the last one has left these registers."""
        source, results = self._memory.output, self._results
        m.d.comb += results.result["last"].eq(carried(m, 1, source.p.last, _STAGES))
        values = carried(m, 1, source.p["values"])
        for slot in range(self._slots):
            shift = shifts[slot]
            product = multiply(m, f"product_{slot}", values[0][slot], factors[slot])
            # From here on the lowest bit is the one that was shifted out last.
            shifted = carried(m, 1, Cat(0, product).as_signed() >> Cat(C(0, 3), shift[3:]))
            y = carried(m, 1, clamped(carried(m, 1, shifted >> shift[:3], name="unclamped"), _WIDE))
            rounded = carried(m, 1, (y[1:].as_signed() + y[0]).as_signed())
            normed = carried(m, 1, saturate(rounded, _WIDE))
            m.d.comb += results.result["values"][0][slot].eq(normed)


def _shifted_in(items: Any, item: Value) -> Any:
    """Return the assignment that drops the first of some items, and appends one."""
    everything = items.as_value()
    return everything.eq(Cat(everything[len(item) :], item))
