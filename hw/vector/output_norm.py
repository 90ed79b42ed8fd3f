"""Root mean square normalization of the rows of a matrix, before they are added to the residual."""

from typing import Any, Literal

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.credit_queue import CreditQueue
from edgedec.hw.blocks.payloads import word, words
from edgedec.hw.blocks.pipeline import carried, check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.vector_memory import VectorMemory
from edgedec.hw.config import HEAD_NORM_ITEMS
from edgedec.hw.vector.rms_norm import RmsNorm
from edgedec.hw.vector.root_scaler import SCALE_STAGES, SHIFT_BITS, RootScaler

__all__ = ["OutputNorm"]

_WIDE = 27  # bits of an element
_ITEM_BITS, _EPS_BITS = 16, 48


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
        self._norm, self._scaler = RmsNorm(slots=slots), RootScaler(slots=slots, bits=_WIDE)
        self._memory = VectorMemory(width=_WIDE, slots=slots, depth=depth, style=style)
        self._results = CreditQueue(shape=word(_WIDE, slots), stages=SCALE_STAGES)
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
        parts = self._norm.resources + self._scaler.resources + self._memory.resources + self._results.resources
        control = Resources(lut=40, ff=_ITEM_BITS * HEAD_NORM_ITEMS + 30)
        return parts + control

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.norm, m.submodules.scaler, m.submodules.results = self._norm, self._scaler, self._results
        m.submodules.memory = self._memory
        norming = Signal()
        header = Signal(_ITEM_BITS * HEAD_NORM_ITEMS, reset_less=True)
        taken = Signal()
        ended = Signal()
        self._control(m, norming, header, ended)
        self._enter(m, norming, header, taken, ended)
        self._leave(m, header[_EPS_BITS:][:SHIFT_BITS])
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
        """Read the vector once its factors are known, and scale it."""
        scaler, memory, results = self._scaler, self._memory, self._results
        connect(m, self._norm.roots, scaler.roots)
        m.d.comb += [
            scaler.base.eq(base),
            memory.reads.p.length.eq(memory.written),
            memory.reads.valid.eq(scaler.known),
            scaler.done.eq(scaler.known & memory.reads.ready),
            results.enter.eq(memory.output.valid & results.room),
            memory.output.ready.eq(results.room),
            scaler.values.eq(memory.output.p["values"]),
            results.result["last"].eq(carried(m, 1, memory.output.p.last, SCALE_STAGES)),
            results.result["values"].eq(scaler.scaled),
        ]
