"""Root mean square normalization of each head of queries and keys, before their rotation."""

from typing import Any

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.credit_queue import CreditQueue
from edgedec.hw.blocks.payloads import rows, word, words
from edgedec.hw.blocks.pipeline import carried, check
from edgedec.hw.blocks.ram_cost import block_rams, distributed_luts
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import HEAD_NORM_ITEMS
from edgedec.hw.vector.rms_norm import RmsNorm
from edgedec.hw.vector.root_scaler import SCALE_STAGES, SHIFT_BITS, RootScaler

__all__ = ["HeadNorm"]

_NARROW, _WIDE = 18, 27  # bits of an element: at the ports, and in the norm
_ITEM_BITS, _EPS_BITS = 16, 48
_STAGES = 1 + SCALE_STAGES  # registers from a read of the memory to a normed element


class HeadNorm(CostedComponent):
    """Compute sat(rs(y * R, sh), 18) for each head; y = rs(x * 2^9 * g, 15), R = (2^32 - 1) // root, sh = shift + exponent.

    root * 2^exponent is the root of the sum of the squares of x * 2^9, with eps; sh is clamped to 0 .. 47. A head waits in a
    memory until its root is known. Another one may enter meanwhile.

    Parameters:
        slots: number of slots, 1 to 8.
        head_dim: elements of a head, 2 to 2048.

    Members:
        normed: In(1). The vector is normed. Otherwise it passes unchanged. It is steady from the first word that is
            offered until the last one has left.
        gains: In(stream of signed(16) [1]). Items of ``head_norm_items`` of edgedec.hw.compiler.constants, taken before
            the first word of a normed vector, and at no other time.
        input: In(words(18, slots)). Whole heads, if they are normed. A vector must not be offered before the last word
            of the one before it has left.
        output: Out(words(18, slots)). The same order, with ``last`` likewise.

    Latency: none without a norm. With one, head_dim + 5 cycles to take the gains, and from the last word of a head to its
        normed first word 37 * slots + 29.
    Throughput: one word per cycle into a head and out of it; one head in head_dim + 18 * slots + 16 cycles.
    Source: docs/integer-profile.md, "RMS norm". Three multiplications per slot, and one divider.
    """

    def __init__(self, *, slots: int, head_dim: int) -> None:
        check("slots", slots, 1, 8)
        check("head_dim", head_dim, 2, 2048)
        self._slots, self._head_dim = slots, head_dim
        self._norm, self._scaler = RmsNorm(slots=slots), RootScaler(slots=slots, bits=_NARROW)
        self._results = CreditQueue(shape=word(_NARROW, slots), stages=_STAGES)
        super().__init__(
            lambda: {
                "normed": In(1),
                "gains": In(stream.Signature(data.ArrayLayout(signed(_ITEM_BITS), 1))),
                "input": In(words(_NARROW, slots)),
                "output": Out(words(_NARROW, slots)),
            }
        )

    @property
    def resources(self) -> Resources:
        slots, head_dim = self._slots, self._head_dim
        parts = self._norm.resources + self._scaler.resources + self._results.resources
        memories = Resources(lut=distributed_luts(_ITEM_BITS, head_dim), bram18=block_rams(_WIDE * slots, 2 * head_dim))
        index = (2 * head_dim).bit_length()
        control = Resources(lut=6 * index + 10, ff=5 * index + _ITEM_BITS * HEAD_NORM_ITEMS + 11)
        return parts + memories + control

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.norm, m.submodules.scaler, m.submodules.results = self._norm, self._scaler, self._results
        norming = Signal()
        whole = Signal()  # the last word of the vector was taken
        header = Signal(_ITEM_BITS * HEAD_NORM_ITEMS, reset_less=True)
        column = Signal(range(self._head_dim))
        taken = Signal()
        given = Signal()  # the last word of a head is read
        ended = Signal()
        self._control(m, norming, header, column, ended)
        self._enter(m, norming, whole, header, column, taken, given)
        self._leave(m, whole, header[_EPS_BITS:][:SHIFT_BITS], given)
        source, sink, results = self.input, self.output, self._results.output
        m.d.comb += [
            source.ready.eq(Mux(self.normed, taken, sink.ready)),
            Value.cast(sink.payload).eq(Mux(self.normed, results.payload.as_value(), source.payload.as_value())),
            sink.valid.eq(Mux(self.normed, results.valid, source.valid)),
            results.ready.eq(self.normed & sink.ready),
            ended.eq(results.valid & results.ready & results.p.last),
        ]
        with m.If(taken & source.p.last):
            m.d.sync += whole.eq(1)
        with m.If(ended):
            m.d.sync += whole.eq(0)
        return m

    def _control(self, m: Module, norming: Signal, header: Signal, column: Signal, ended: Signal) -> None:
        """Take the gains when a vector that is normed is offered, and then norm it."""
        items = self.gains
        before = Signal(range(HEAD_NORM_ITEMS))
        m.submodules.table = self._table = Memory(
            shape=signed(_ITEM_BITS), depth=self._head_dim, init=[], attrs={"ram_style": "distributed"}
        )
        port = self._table.write_port()
        m.d.comb += [port.addr.eq(column), port.data.eq(items.payload[0])]
        with m.FSM():
            with m.State("idle"), m.If(self.normed & self.input.valid):
                m.next = "header"
            with m.State("header"):
                m.d.comb += items.ready.eq(1)
                with m.If(items.valid):
                    m.d.sync += [header.eq(Cat(header[_ITEM_BITS:], items.payload[0])), before.eq(before + 1)]
                    with m.If(before == HEAD_NORM_ITEMS - 1):
                        m.next = "gains"
            with m.State("gains"):
                m.d.comb += [items.ready.eq(1), port.en.eq(items.valid)]
                with m.If(items.valid):
                    self._step(m, column)
                    with m.If(column == self._head_dim - 1):
                        m.next = "norm"
            with m.State("norm"):
                m.d.comb += norming.eq(1)
                with m.If(ended):
                    m.next = "idle"

    def _step(self, m: Module, index: Signal, words: int | None = None) -> None:
        """Count ``words`` words, by default those of a head, and begin again."""
        last = (self._head_dim if words is None else words) - 1
        m.d.sync += index.eq(Mux(index == last, 0, index + 1))

    def _enter(
        self, m: Module, norming: Signal, whole: Signal, header: Signal, column: Signal, taken: Signal, given: Signal
    ) -> None:
        """Pass words through the norm into the memory, which holds two heads."""
        norm, source = self._norm, self.input
        held = Signal(range(3))
        begins = Signal()
        open_ = Signal()
        table = self._table.read_port(domain="comb")
        m.d.comb += [
            table.addr.eq(column),
            open_.eq(norming & ~whole & ((column != 0) | (held != 2))),
            norm.input.valid.eq(source.valid & open_),
            norm.input.p.last.eq(column == self._head_dim - 1),
            norm.gains.payload[0].eq(table.data),
            norm.gains.valid.eq(1),
            norm.eps.payload.eq(header[:_EPS_BITS]),
            norm.eps.valid.eq(1),
            taken.eq(norm.input.valid & norm.input.ready),
            begins.eq(taken & (column == 0)),
        ]
        for slot in range(self._slots):
            m.d.comb += norm.input.p["values"][0][slot].eq(
                Cat(C(0, _WIDE - _NARROW), source.p["values"][0][slot]).as_signed()
            )
        with m.If(taken):
            self._step(m, column)
        m.d.sync += held.eq(held + begins - given)
        m.submodules.memory = self._memory = Memory(
            shape=rows(_WIDE, self._slots, 1), depth=2 * self._head_dim, init=[], attrs={"ram_style": "block"}
        )
        write = self._memory.write_port()
        index = Signal(range(2 * self._head_dim))
        m.d.comb += [
            write.addr.eq(index),
            write.data.eq(norm.output.p["values"]),
            write.en.eq(norm.output.valid),
        ]
        with m.If(norm.output.valid):
            self._step(m, index, 2 * self._head_dim)

    def _leave(self, m: Module, whole: Signal, base: Value, given: Signal) -> None:
        """Read a head once its factors are known, word by word as there is room for results, and scale it."""
        scaler, results = self._scaler, self._results
        final = Signal()
        left = Signal(range(self._head_dim + 1))
        connect(m, self._norm.roots, scaler.roots)
        m.d.comb += [
            scaler.base.eq(base),
            scaler.done.eq(given),
            results.enter.eq(scaler.known & results.room),
            given.eq(results.enter & (left == 1)),
        ]
        with m.If(scaler.roots.ready):
            m.d.sync += [final.eq(whole), left.eq(self._head_dim)]
        with m.If(results.enter):
            m.d.sync += left.eq(left - 1)
        index = Signal(range(2 * self._head_dim))
        read = self._memory.read_port(transparent_for=())
        m.d.comb += [
            read.addr.eq(index),
            scaler.values.eq(read.data),
            results.result.last.eq(carried(m, 1, final & (left == 1), _STAGES)),
            results.result["values"].eq(scaler.scaled),
        ]
        with m.If(results.enter):
            self._step(m, index, 2 * self._head_dim)
