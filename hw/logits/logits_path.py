"""Logits are reduced to the likeliest tokens, and written as whole rows on request."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect

from edgedec.hw.blocks.collector import Collector
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import beat, payload, scales, word, words
from edgedec.hw.blocks.pipeline import carried, check, delayed
from edgedec.hw.blocks.register_slice import RegisterSlice, sliced
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.isa.output_layout import RESULT_BYTES, ROWS_OFFSET
from edgedec.hw.logits.exponential_sum import SHIFT_BITS, ExponentialSum
from edgedec.hw.logits.top_k import ID_BITS, TopK

__all__ = ["PIECE_BEATS", "LogitsPath", "output_requests", "vocabulary"]

PIECE_BEATS = 32  # largest number of beats of a request
_LOGIT_BYTES = 4  # bytes of a logit
_BITS = 8 * _LOGIT_BYTES  # bits of a logit
_LEFT_BITS = ID_BITS + 6  # bits of the size in bytes of the rows of all ids


def vocabulary() -> data.StructLayout:
    """Return the description of a vector: id of its first logit, and number of valid logits, at least 1.

    The sums of exponentials have the first ``counted`` logits, and ``sum_shift`` is their shift (``ExponentialSum``).
    """
    sums = {"counted": unsigned(ID_BITS), "sum_shift": signed(SHIFT_BITS)}
    return data.StructLayout({"first": unsigned(ID_BITS), "elements": unsigned(ID_BITS), **sums})


def output_requests() -> stream.Signature:
    """Return a stream of writes of ``bytes`` bytes, ``offset`` bytes after the output's address."""
    return stream.Signature(data.StructLayout({"offset": unsigned(32), "bytes": unsigned(32)}))


def row_lanes(slots: int) -> int:
    """Return the logits of an id in a row: the slots, rounded up to a power of two."""
    return 1 << (slots - 1).bit_length()


class LogitsPath(CostedComponent):
    """Write for each vector, little endian:

        first the rows, if requested, from 4096 on: for each id, from ``first`` on, s32 [slots, up to a power of two]
        then the results, from 0 on: [slots] x {u16 mantissa, s16 exponent, u32 sum of exponentials}, and for the k
            likeliest, in order, [slots] x {s32 logit, u32 id}; of slots that are not used the sums are 0, the rest arbitrary

    Requests are divided into pieces, and none is issued before its first beat is available: a vector that is announced
    long before its logits arrive blocks no other writer.

    Parameters:
        slots: number of slots, 1 to 8.
        top_k: number of likeliest tokens, 1 to 64; the results must end before the rows.
        port_bytes: bytes of a beat, 4, 8, 16, 32 or 64.

    Members:
        vectors: In(stream vocabulary()). One item per vector of logits, taken once the previous one is written.
        rows_wanted: In(1). Whether whole rows are written; steady from a vector on until it is written.
        used: In(range(slots + 1)). Slots that a pass uses: the first ones, at least one; steady as ``rows_wanted``.
        input: In(words(32, slots, 1)). One item per id. ``elements`` items form the vector; items after them, up to
            ``last``, are dropped, and an earlier ``last`` is ignored.
        scales: In(stream scales(slots)). One item per vector: scales of the multiplied codes. It is taken when the first id
            waits, which is taken after it.
        requests: Out(output_requests()). Writes of at most 32 beats each; the offset is a multiple of that.
        data: Out(beat(port_bytes)). The beats of each request; bytes after its end are arbitrary.
        idle: Out(1). No vector is in progress or offered.

    Latency: from the last logit of the last id to the sums as ``ExponentialSum``; then 2 cycles to each of the likeliest, 3
        with one slot. A request takes one more cycle.
    Throughput: one id in as many cycles as slots are used, at least 3. With rows, in as many as the slots rounded up to a
        power of two, at least 3.
    Source: docs/integer-profile.md, "Head".
    """

    def __init__(self, *, slots: int, top_k: int, port_bytes: int) -> None:
        check("slots", slots, 1, 8)
        check("top_k", top_k, 1, 64)
        if port_bytes not in (4, 8, 16, 32, 64):
            raise ValueError(f"port_bytes must be 4, 8, 16, 32 or 64, not {port_bytes!r}")
        most = ROWS_OFFSET // RESULT_BYTES // slots - 1
        if top_k > most:
            raise ValueError(f"top_k must be at most {most} with {slots} slots, not {top_k!r}")
        self._slots, self._k, self._port_bytes = slots, top_k, port_bytes
        self._search, self._sums = TopK(slots=slots, k=top_k), ExponentialSum(slots=slots)
        lanes = port_bytes // _LOGIT_BYTES
        self._collector = Collector(width=_BITS, slots=1, lanes=lanes)
        self._whole = RegisterSlice(shape=word(_BITS, 1, lanes))
        super().__init__(
            lambda: {
                "vectors": In(stream.Signature(vocabulary())),
                "rows_wanted": In(1),
                "used": In(range(slots + 1)),
                "input": In(words(_BITS, slots, 1)),
                "scales": In(scales(slots)),
                "requests": Out(output_requests()),
                "data": Out(beat(port_bytes)),
                "idle": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        control = Resources(lut=270 + 39 * self._slots, ff=112 + 27 * self._slots)
        parts = (self._search, self._sums, self._collector, self._whole)
        return total(part.resources for part in parts) + control

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.top, m.submodules.beats = top, beats = self._search, self._collector
        m.submodules.sums = self._sums
        starts = Signal()  # a vector starts
        rows_requested = Signal()  # its rows are written
        row = words(_BITS, 1, 1).create()
        scales_held = Signal(payload(scales(self._slots)), reset_less=True)
        m.d.comb += starts.eq(self.vectors.valid & self.vectors.ready)
        known = self._number(m, top, row, starts, rows_requested, scales_held)
        self._collect(m, top, row, beats.input, starts, (scales_held, known))
        self._write(m, sliced(m, "whole", beats.output, self._whole), starts)
        return m

    def _number(self, m: Module, top: Any, row: Any, starts: Signal, rows_requested: Signal, held: Any) -> Signal:
        """Send each id's logits, slot by slot, to the search and to the sums and, if requested, to the row.

        Return whether ``held`` has the scales of the vector.
        """
        source, sums, slots, lanes = self.input, self._sums.logits, self._slots, row_lanes(self._slots)
        name = Signal(ID_BITS)  # id of the item
        missing = Signal(ID_BITS)  # valid items left
        uncounted = Signal(ID_BITS)  # items left that the sums have
        counting = Signal()  # there are some
        counts = Signal()
        drops = Signal()
        final = Signal()
        turn = Signal(range(lanes))  # current slot; zeros after the slots complete the row
        last = Signal(range(slots))  # last slot of which the search gets logits: it needs three cycles for each id
        last_turn = Signal(range(lanes))
        ends = Signal()
        padding = Signal()
        offered = Signal()
        searched = Signal()
        logit = source.p["values"][0][turn]
        scale = held[turn]
        known = Signal()
        least = min(slots, 3)
        most = carried(m, 1, Mux(self.used < least, least, self.used) - 1)
        m.d.comb += [
            final.eq(missing == 1),
            padding.eq(turn >= slots),
            ends.eq(turn == last_turn),
            self.scales.ready.eq(source.valid & counts & ~known),
            offered.eq(source.valid & counts & ~drops & known),
            searched.eq((top.input.ready & sums.ready) | padding),
            top.last.eq(last),
            top.input.p.logit.eq(logit),
            top.input.p.id.eq(name),
            top.input.p.last.eq(final & (turn == last)),
            top.input.valid.eq(offered & ~padding & sums.ready & (row.ready | ~rows_requested)),
            *(sums.p.logit.eq(logit), sums.p.slot.eq(turn), sums.p.last.eq(top.input.p.last)),
            *(sums.p.mantissa.eq(scale.mantissa), sums.p.exponent.eq(scale.exponent)),
            sums.p.counts.eq(counting & (turn < self.used)),
            sums.valid.eq(top.input.valid & top.input.ready),
            row.p["values"][0][0].eq(Mux(padding, 0, logit)),
            row.p.last.eq(final & ends),
            row.valid.eq(offered & rows_requested & searched),
            source.ready.eq(drops | (offered & ends & searched & (row.ready | ~rows_requested))),
            self._sums.used.eq(self.used),
        ]
        with m.If((top.input.valid & top.input.ready) | (padding & row.valid & row.ready)):
            m.d.sync += turn.eq(Mux(ends, 0, turn + 1))
            with m.If(ends):
                m.d.sync += [name.eq(name + 1), missing.eq(missing - 1), uncounted.eq(uncounted - 1)]
                with m.If(uncounted == 1):
                    m.d.sync += counting.eq(0)
                with m.If(final):
                    m.d.sync += [counts.eq(0), drops.eq(~source.p.last)]
        with m.If(drops & source.valid & source.p.last):
            m.d.sync += drops.eq(0)
        with m.If(self.scales.valid & self.scales.ready):
            m.d.sync += [held.eq(self.scales.payload), known.eq(1)]
        with m.If(starts):
            m.d.sync += [
                known.eq(0),
                name.eq(self.vectors.p.first),
                missing.eq(self.vectors.p.elements),
                uncounted.eq(self.vectors.p.counted),
                counting.eq(self.vectors.p.counted != 0),
                self._sums.shift.eq(self.vectors.p.sum_shift),
                counts.eq(1),
                rows_requested.eq(self.rows_wanted),
            ]
        with m.If(delayed(m, 1, starts)):  # no id is taken in this cycle, because the scales are not known
            m.d.sync += [
                last.eq(Mux(rows_requested, slots - 1, most)),
                last_turn.eq(Mux(rows_requested, lanes - 1, most)),
            ]
        return known

    def _collect(self, m: Module, top: Any, row: Any, sink: Any, starts: Signal, scales_: tuple[Any, Signal]) -> None:
        """Collect the values to write, in order: rows, scales, likeliest tokens."""
        # second: the second half of a slot's result.
        slot = Signal(range(self._slots))
        second = Signal()
        used = Signal()
        has_sum = Signal()
        held, known = scales_
        best, sums = top.output, self._sums.sums
        value = sink.p["values"][0][0]
        exponent = Signal(signed(16))
        m.d.comb += [exponent.eq(held[slot].exponent), used.eq(sink.valid & sink.ready)]
        with m.If(used):
            m.d.sync += second.eq(~second)
        with m.FSM():
            with m.State("idle"), m.If(starts):
                m.next = "scales"
                with m.If(self.rows_wanted):
                    m.next = "rows"
            with m.State("rows"):
                connect(m, row, sink)
                with m.If(used & row.p.last):
                    m.d.sync += second.eq(0)
                    m.next = "scales"
            with m.State("scales"):
                ends = second & (slot == self._slots - 1)
                m.d.comb += [
                    has_sum.eq(slot < self.used),
                    value.eq(
                        Mux(
                            second,
                            Mux(has_sum, sums.payload, 0),
                            Cat(held[slot].mantissa, exponent),
                        )
                    ),
                    sink.valid.eq(known & (~second | ~has_sum | sums.valid)),
                    sums.ready.eq(second & has_sum & sink.ready),
                ]
                with m.If(used & second):
                    m.d.sync += slot.eq(Mux(ends, 0, slot + 1))
                    with m.If(ends):
                        m.next = "likeliest"
            with m.State("likeliest"):
                m.d.comb += [
                    value.eq(Mux(second, best.p.id, best.p.logit)),
                    sink.valid.eq(best.valid),
                    sink.p.last.eq(second & best.p.last),
                    best.ready.eq(second & sink.ready),
                ]
                with m.If(used & sink.p.last):
                    m.next = "idle"

    def _write(self, m: Module, beats: Any, starts: Signal) -> None:
        """Issue requests and beats: first the rows, then the results."""
        announced, piece = self.vectors.p, PIECE_BEATS * self._port_bytes
        whole = RESULT_BYTES * self._slots * (self._k + 1)
        offset = Signal(_LEFT_BITS + 1)  # offset of the next request
        left = Signal(_LEFT_BITS)  # bytes left from there
        open_ = Signal()  # beats of an issued request follow
        index = Signal(range(PIECE_BEATS))
        ends = Signal()
        busy = Signal()
        rows = Signal()
        m.d.comb += [
            self.vectors.ready.eq(~busy),
            self.idle.eq(~busy & ~self.vectors.valid),
            self.requests.valid.eq(beats.valid & ~open_),
            self.requests.p.offset.eq(offset),
            self.requests.p.bytes.eq(Mux(left < piece, left, piece)),
            self.data.valid.eq(beats.valid & open_),
            self.data.payload.eq(beats.p["values"].as_value()),
            beats.ready.eq(self.data.ready & open_),
            ends.eq(beats.valid & beats.ready & beats.p.last),
        ]
        with m.If(self.requests.valid & self.requests.ready):
            m.d.sync += open_.eq(1)
        with m.If(beats.valid & beats.ready):
            m.d.sync += index.eq(index + 1)
            with m.If((index == PIECE_BEATS - 1) | beats.p.last):
                m.d.sync += [open_.eq(0), index.eq(0), offset.eq(offset + piece), left.eq(left - piece)]
        with m.If(ends):
            m.d.sync += [offset.eq(0), left.eq(whole), rows.eq(0)]
            with m.If(~rows):
                m.d.sync += busy.eq(0)
        with m.If(starts):
            m.d.sync += [busy.eq(1), rows.eq(self.rows_wanted), offset.eq(0), left.eq(whole)]
            with m.If(self.rows_wanted):
                row = _LOGIT_BYTES * row_lanes(self._slots)
                m.d.sync += [offset.eq(ROWS_OFFSET), left.eq(announced.elements << (row.bit_length() - 1))]
