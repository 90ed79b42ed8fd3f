"""Writes of tapped vectors, of the products of norms, and of their roots to the output."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.collector import Collector
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.fifo import Fifo, small_queue
from edgedec.hw.blocks.payloads import beat, payload, roots, word, words
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.isa.output_layout import RESULT_BYTES, TAP_PAGE_BYTES
from edgedec.hw.logits.logits_path import PIECE_BEATS, output_requests, row_lanes
from edgedec.hw.logits.output_merge import OutputMerge

__all__ = ["TAP_FIELDS", "TapQueue", "TapWriter", "tap_plan"]

_WIDE = 27  # bits of an element
_ITEM = 32  # bits of an element in memory
_PAGE_BITS = 20  # pages of the offset of a request, which has 32 bits
_PAGE_LOG2 = (TAP_PAGE_BYTES - 1).bit_length()
_BEATS = 2 * PIECE_BEATS  # beats that wait for a request
_WORDS = 16  # words of a norm that wait
_UNDERWAY = 8  # words that may still come when there is no more room


# Fields of a ``VECTOR``: whether it is written itself, and its norm; and the first page.
TAP_FIELDS = {"tap": unsigned(1), "tap_norm": unsigned(1), "tap_page": unsigned(_PAGE_BITS)}


def tap_plan() -> data.StructLayout:
    """Return ``TAP_FIELDS`` with the vector's blocks of codes, at least 1."""
    return data.StructLayout({**TAP_FIELDS, "blocks": unsigned(16)})


class TapQueue(CostedComponent):
    """Write the words of a vector from an offset on: for each element s32 [slots, up to a power of two].

    Parameters:
        slots: number of slots, 1 to 8.
        port_bytes: bytes of a beat, 4, 8, 16, 32 or 64.

    Members:
        offset: In(stream unsigned(32)). One item per vector, a multiple of 4096.
        input: In(words(27, slots)). The vector.
        requests: Out(output_requests()). Writes of 32 beats each, and of what is left at the end; each is issued when its
            beats wait.
        data: Out(beat(port_bytes)). The beats of each request; bytes after the vector's end are zero.
        idle: Out(1). No vector is announced, and none waits.

    Latency: 2 cycles from the word that completes a piece to its request.
    Throughput: an element in as many cycles as it has beats, at least one.
    Source: hw/compiler/output_places.py has the layout.
    """

    def __init__(self, *, slots: int, port_bytes: int) -> None:
        check("slots", slots, 1, 8)
        self._slots, self._port_bytes = slots, port_bytes
        lanes, wide = port_bytes // (_ITEM // 8), row_lanes(slots)
        self._part = min(wide, lanes)  # slots of an element that one beat has
        self._parts = wide // self._part  # beats of an element, if it has several
        self._collector = Collector(width=_ITEM, slots=self._part, lanes=lanes // self._part)
        self._beats = Fifo(shape=8 * port_bytes, depth=_BEATS, style="block")
        super().__init__(
            lambda: {
                "offset": In(stream.Signature(unsigned(32))),
                "input": In(words(_WIDE, slots)),
                "requests": Out(output_requests()),
                "data": Out(beat(port_bytes)),
                "idle": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        chosen = _ITEM * self._part * -(-(self._parts - 1) // 3)  # a LUT chooses among four parts
        return self._beats.resources + self._collector.resources + Resources(lut=62 + chosen, ff=38)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.collector, m.submodules.beats = collector, beats = self._collector, self._beats
        whole = collector.output
        busy = Signal()  # a vector is announced, and not all of it is written
        ended = Signal()  # its last beat waits, or has left
        left = Signal(range(PIECE_BEATS + 1))  # beats of the request that have not left
        # Beats that no request has. The queue's level is a sum, and so known later in a cycle.
        waiting = Signal(range(_BEATS + 3))
        is_piece = Signal()
        piece = Signal(range(PIECE_BEATS + 1))
        self._divide(m, busy & ~ended)
        m.d.comb += [
            self.offset.ready.eq(~busy),
            self.idle.eq(~busy & ~self.offset.valid),
            beats.input.payload.eq(whole.p["values"].as_value()),
            beats.input.valid.eq(whole.valid),
            whole.ready.eq(beats.input.ready),
            is_piece.eq(waiting >= PIECE_BEATS),
            piece.eq(Mux(is_piece, PIECE_BEATS, waiting)),
            self.requests.p.bytes.eq(piece * self._port_bytes),
            self.requests.valid.eq(busy & (left == 0) & (is_piece | (ended & (waiting != 0)))),
            self.data.payload.as_value().eq(beats.output.payload),
            self.data.valid.eq(beats.output.valid & (left != 0)),
            beats.output.ready.eq(self.data.ready & (left != 0)),
        ]
        offset = Signal(32)
        m.d.comb += self.requests.p.offset.eq(offset)
        with m.If(self.offset.valid & self.offset.ready):
            m.d.sync += [busy.eq(1), offset.eq(self.offset.payload)]
        with m.If(whole.valid & whole.ready & whole.p.last):
            m.d.sync += ended.eq(1)
        comes, asked = whole.valid & whole.ready, self.requests.valid & self.requests.ready
        with m.If(asked):
            m.d.sync += [
                *(left.eq(piece), offset.eq(offset + PIECE_BEATS * self._port_bytes)),
                waiting.eq(Mux(is_piece, waiting - PIECE_BEATS, 0) + comes),
            ]
        with m.Elif(comes):
            m.d.sync += waiting.eq(waiting + 1)
        with m.If(self.data.valid & self.data.ready):
            m.d.sync += left.eq(left - 1)
        with m.If(ended & beats.empty):
            m.d.sync += [busy.eq(0), ended.eq(0)]
        return m

    def _divide(self, m: Module, takes: Value) -> None:
        """Give the collector the parts of each element that have a beat, one after another."""
        source, sink = self.input, self._collector.input
        slots = [source.p["values"][0][slot] if slot < self._slots else 0 for slot in range(self._part * self._parts)]
        parts = [slots[at : at + self._part] for at in range(0, len(slots), self._part)]
        index = Signal(range(self._parts))
        final = index == self._parts - 1
        with m.Switch(index):
            for number, part in enumerate(parts):
                with m.Case(number):
                    m.d.comb += [sink.p["values"][0][lane].eq(one) for lane, one in enumerate(part)]
        m.d.comb += [
            sink.p.last.eq(source.p.last & final),
            sink.valid.eq(source.valid & takes),
            source.ready.eq(sink.ready & takes & final),
        ]
        with m.If(sink.valid & sink.ready):
            m.d.sync += index.eq(Mux(final, 0, index + 1))


class TapWriter(CostedComponent):
    """Pass vectors on, and write what each taps (hw/compiler/output_places.py): the vector, its norm's product and roots.

    Parameters:
        slots: number of slots, 1 to 8.
        beat_bytes: columns of a block of codes, 1 to 64, so that a block has at most half a page.
        port_bytes: bytes of a beat, 4, 8, 16, 32 or 64.

    Members:
        plans: In(stream tap_plan()). One item per vector, before it.
        input: In(words(27, slots)). The vectors.
        output: Out(words(27, slots)). The same.
        normed: In(stream word(27, slots), always ready). The words of a vector's norm, up to 8 cycles after it.
        roots: In(stream of roots(slots), always ready). The roots of the norm, after its words.
        other_requests, other_data: In(output_requests()), In(beat(port_bytes)). Another unit's writes.
        requests: Out(output_requests()). Writes of at most 32 beats each, and those of the other unit.
        data: Out(beat(port_bytes)). The beats of each request; bytes after the end of a vector or of the roots are zero.
        idle: Out(1). No word has come of a vector that is not wholly written; other writes do not count. A vector that is
            only announced may have to wait until everything is idle.

    Latency: none from ``input`` to ``output``; of writes as ``TapQueue`` and ``OutputMerge``.
    Throughput: an element in as many cycles as it has beats, for each of the vector and the norm, else one per cycle. A
        vector is announced when the one before it is written.
    Source: docs/accelerator.md, "Taps".
    """

    def __init__(self, *, slots: int, beat_bytes: int, port_bytes: int) -> None:
        check("slots", slots, 1, 8)
        check("beat_bytes", beat_bytes, 1, 64)
        self._slots, self._port_bytes = slots, port_bytes
        self._block_log2 = (beat_bytes * row_lanes(slots) * _ITEM // 8 - 1).bit_length()
        self._queues = [TapQueue(slots=slots, port_bytes=port_bytes) for _ in range(2)]
        self._merge = OutputMerge(sources=4, port_bytes=port_bytes)
        self._root_beats = -(-RESULT_BYTES * slots // port_bytes)
        super().__init__(
            lambda: {
                "plans": In(stream.Signature(tap_plan())),
                "input": In(words(_WIDE, slots)),
                "output": Out(words(_WIDE, slots)),
                "normed": In(stream.Signature(word(_WIDE, slots), always_ready=True)),
                "roots": In(stream.Signature(payload(roots(slots)), always_ready=True)),
                "other_requests": In(output_requests()),
                "other_data": In(beat(port_bytes)),
                "requests": Out(output_requests()),
                "data": Out(beat(port_bytes)),
                "idle": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        inside = total(part.resources for part in (*self._queues, self._merge))
        held = Resources(lut=120, ff=24 * self._slots + 30)
        return inside + small_queue(word(_WIDE, self._slots).size, _WORDS) + held

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.vector, m.submodules.norm = vector, norm = self._queues
        m.submodules.merge = merge = self._merge
        m.submodules.words = waiting = SyncFIFO(width=word(_WIDE, self._slots).size, depth=_WORDS)
        for i, queue in enumerate(self._queues):
            connect(m, queue.requests, getattr(merge, f"requests{i}"))
            connect(m, queue.data, getattr(merge, f"data{i}"))
        connect(m, flipped(self.other_requests), merge.requests3)
        connect(m, flipped(self.other_data), merge.data3)
        connect(m, merge.requests, flipped(self.requests))
        connect(m, merge.data, flipped(self.data))
        wants = {name: Signal(name=f"wants_{name}") for name in ("vector", "norm", "roots")}
        done, begun = Signal(), Signal()
        taken = self.plans.p
        whole, normed = Signal(), Signal()  # writes of the vector that passes now
        m.d.comb += [
            done.eq(vector.idle & norm.idle & ~Cat(*wants.values()).any()),
            self.idle.eq(~begun),
            self.plans.ready.eq(done),
            waiting.w_data.eq(self.normed.payload),
            waiting.w_en.eq(self.normed.valid & normed),
            norm.input.payload.eq(waiting.r_data),
            norm.input.valid.eq(waiting.r_rdy),
            waiting.r_en.eq(norm.input.ready),
        ]
        contract(m, ~waiting.w_en | waiting.w_rdy, "A word of a norm that is written has room")
        room = waiting.w_level <= _WORDS - _UNDERWAY
        goes = (~whole | vector.input.ready) & (~normed | room)
        source, sink = self.input, self.output
        m.d.comb += [
            *(sink.payload.eq(source.payload), vector.input.payload.eq(source.payload)),
            sink.valid.eq(source.valid & goes),
            source.ready.eq(sink.ready & goes),
            vector.input.valid.eq(source.valid & sink.ready & whole & (~normed | room)),
        ]
        with m.If(source.valid & source.ready & (whole | normed)):
            m.d.sync += begun.eq(1)
        with m.Elif(done):
            m.d.sync += begun.eq(0)
        page = self._place(m, wants, done)
        with m.If(self.plans.valid & self.plans.ready):
            m.d.sync += [
                *(whole.eq(taken.tap), normed.eq(taken.tap_norm)),
                *(wants["vector"].eq(taken.tap), wants["norm"].eq(taken.tap_norm), wants["roots"].eq(taken.tap_norm)),
            ]
        self._write_roots(m, merge, wants["roots"], page)
        return m

    def _place(self, m: Module, wants: dict[str, Signal], taken: Value) -> Value:
        """Announce the vector and then its norm to their queues, a cycle each. Return the offset of what comes after them.

        Both queues are idle when a plan is taken, so that neither lets this wait.
        """
        page = Signal(_PAGE_BITS)
        pages = Signal(16 - (each := _PAGE_LOG2 - self._block_log2) + 1)  # pages of a vector
        plan, (vector, norm) = self.plans.p, self._queues
        offset = page << _PAGE_LOG2
        m.d.comb += [
            *(vector.offset.payload.eq(offset), norm.offset.payload.eq(offset)),
            *(vector.offset.valid.eq(wants["vector"]), norm.offset.valid.eq(wants["norm"] & ~wants["vector"])),
        ]
        with m.If(taken):
            m.d.sync += [page.eq(plan.tap_page), pages.eq((plan.blocks + (1 << each) - 1) >> each)]
        with m.Elif(wants["vector"] | wants["norm"]):
            m.d.sync += page.eq(page + pages)
        for name, queue in (("vector", vector), ("norm", norm)):
            with m.If(queue.offset.valid):
                m.d.sync += wants[name].eq(0)
            contract(m, ~queue.offset.valid | queue.offset.ready, "The queue of a vector that is announced is idle")
        return offset

    def _write_roots(self, m: Module, merge: Any, wanted: Signal, offset: Value) -> None:
        """Hold the roots, and write {root u16, exponent s16, 0} of each slot."""
        held = Signal(self.roots.payload.shape(), reset_less=True)
        have = Signal()
        passed = Signal()  # the words of the norm have passed; roots that come before are those of an earlier one
        open_ = Signal()
        index = Signal(range(self._root_beats))
        bits = Cat(Cat(one.mantissa, one.exponent, one.exponent[-1].replicate(8), Const(0, 32)) for one in held)
        size = 8 * self._port_bytes
        beats = [bits[at * size : (at + 1) * size] for at in range(self._root_beats)]
        m.d.comb += [
            merge.requests2.p.offset.eq(offset),
            merge.requests2.p.bytes.eq(self._root_beats * self._port_bytes),
            merge.requests2.valid.eq(have & ~open_),
            merge.data2.payload.as_value().eq(Array(beats)[index]),
            merge.data2.valid.eq(open_),
        ]
        with m.If(self.normed.valid & self.normed.p.last & wanted):
            m.d.sync += passed.eq(1)
        with m.If(self.roots.valid & passed):
            m.d.sync += [held.eq(self.roots.payload), have.eq(1), passed.eq(0)]
        with m.If(merge.requests2.valid & merge.requests2.ready):
            m.d.sync += open_.eq(1)
        with m.If(merge.data2.valid & merge.data2.ready):
            m.d.sync += index.eq(index + 1)
            with m.If(index == self._root_beats - 1):
                m.d.sync += [index.eq(0), open_.eq(0), have.eq(0), wanted.eq(0)]
